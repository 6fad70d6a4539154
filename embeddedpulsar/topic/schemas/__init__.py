"""The schemas of topics: their versions, the policies about them, and the document that they lie in."""
