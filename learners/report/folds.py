"""The page of a cross-validation."""

from __future__ import annotations

from collections.abc import Mapping

import pandas as pd

from learners.report import page as parts


def folds_page(
    title: str, table: pd.DataFrame, links: Mapping[str, str], missing: list[str]
) -> str:
    """The table as a page of its own, each fold with a link to its report."""
    head = (
        "<p>Each fold was tested by a network that has not seen it. Spread is the standard "
        "deviation over the folds.</p>"
    )
    if missing:
        head += parts.notices([f"Still to be trained: {', '.join(missing)}."])
    counts = [name for name in table if str(name).endswith("_items")]
    figures = table.drop(columns=counts).set_index("fold").T
    figures.insert(0, "figure", [str(name).replace("_", " ") for name in figures.index])
    reports = "".join(
        f'<li><a href="{parts.text(link)}">fold {parts.text(name)}</a></li>'
        for name, link in links.items()
    )
    sections = [("Figures", parts.table(figures)), ("Reports", f"<ul>{reports}</ul>")]
    return parts.document(f"{title}: folds", head, sections)
