"""Parts of the suite on other versions of Python, or by the rules of another Unix, and what was run.

.venv/bin/python -m tests.pythons --python python3.13 unit conformance
sudo .venv/bin/python -m tests.pythons --debian /var/tmp/sid --python 3.14 --record unit storms
.venv/bin/python -m tests.pythons --unix darwin --again conformance
.venv/bin/python -m tests.pythons --table
"""
