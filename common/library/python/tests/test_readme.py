"""The example of the pages: the same on both, and Python. On a GPU test_torch.py runs it."""

from __future__ import annotations

from pathlib import Path

PACKAGE = Path(__file__).resolve().parents[1]
PAGES = (PACKAGE / "README.md", PACKAGE.parents[2] / "README.md")


def example(page: Path = PAGES[0]) -> str:
    """The first fenced block of Python."""
    _, _, rest = page.read_text(encoding="utf-8").partition("```python\n")
    code, fence, _ = rest.partition("```\n")
    assert fence, f"{page} has no block of Python"
    return code


def test_both_pages_have_the_same_example() -> None:
    package, front = map(example, PAGES)
    assert package == front


def test_the_example_is_python() -> None:
    compile(example(), str(PAGES[0]), "exec")
