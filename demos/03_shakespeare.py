"""A GPT written in SQL, trained on Shakespeare: ``uv run demos/03_shakespeare.py --steps 5``.

The model is in ``shakespeare_gpt/model/*.sql``; ``--help`` lists what can be changed.
"""

from shakespeare_gpt.cli import main

if __name__ == "__main__":
    raise SystemExit(main())
