"""The example of the package's page is Python. On a GPU test_torch.py runs it."""

from __future__ import annotations

from pathlib import Path

PAGE = Path(__file__).resolve().parents[1] / "README.md"


def example() -> str:
    """The first fenced block of Python."""
    _, _, rest = PAGE.read_text(encoding="utf-8").partition("```python\n")
    code, fence, _ = rest.partition("```\n")
    assert fence, f"{PAGE} has no block of Python"
    return code


def test_the_example_is_python() -> None:
    compile(example(), str(PAGE), "exec")
