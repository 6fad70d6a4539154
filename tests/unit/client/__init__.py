"""Unit tests of the client layer, on fakes of the layers below."""
