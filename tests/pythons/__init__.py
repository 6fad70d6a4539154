"""Parts of the suite on other versions of Python, and the table of what was run.

.venv/bin/python -m tests.pythons --python python3.13 unit conformance
sudo .venv/bin/python -m tests.pythons --debian /var/tmp/sid --python 3.14 --record unit storms
.venv/bin/python -m tests.pythons --table
"""
