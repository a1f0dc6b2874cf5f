"""examples/README.md names every example and what it shows. `python -m tests.examples.test_readme` writes it anew."""

from __future__ import annotations

import ast
from pathlib import Path

FOLDER = Path(__file__).parents[2] / "examples"
DOCUMENT = FOLDER / "README.md"
HEAD = """# Examples

Each file runs by itself: start a broker with `kappamq up`, then `python examples/quickstart.py`. Begin with
[quickstart.py](quickstart.py), [send.py](send.py) and [push_consumer.py](push_consumer.py).

| file | what it shows |
|---|---|
"""


def document() -> str:
    rows = []
    for path in sorted(FOLDER.glob("*.py")):
        said = ast.get_docstring(ast.parse(path.read_text(encoding="utf-8"))) or ""
        text = said.partition("\n\n")[0].replace("\n", " ").replace("|", "\\|")
        rows.append(f"| [{path.name}]({path.name}) | {text} |\n")
    return HEAD + "".join(rows)


def test_the_index_names_every_example() -> None:
    assert DOCUMENT.read_text(encoding="utf-8") == document(), "run: python -m tests.examples.test_readme"


if __name__ == "__main__":
    DOCUMENT.write_text(document(), encoding="utf-8")
