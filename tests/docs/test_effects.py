"""The table of `docs/augmentation.md` lists the built-in effects as the code has them."""

from pathlib import Path

from voxelocity.data.augment import EFFECTS

PAGE = Path(__file__).parents[2] / "docs" / "augmentation.md"


def test_the_page_lists_every_effect_as_the_table_has_it():
    rows = ["| effect | what it does | other keys | in nnU-Net |", "|---|---|---|---|"]
    for effect in EFFECTS:
        keys = ", ".join(f"`{key}`" for key in effect.keys)
        rows.append(f"| `{effect.name}` | {effect.about} | {keys} | {'yes' if effect.is_in_nnunet else ''} |")
    table = "\n".join(rows)
    assert table in PAGE.read_text(), f"write this table into {PAGE.name}:\n{table}"
