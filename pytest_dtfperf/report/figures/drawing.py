"""A figure with its name."""

from dataclasses import dataclass

from matplotlib.figure import Figure


@dataclass(frozen=True)
class NamedFigure:
    name: str  # of its file, without an ending
    figure: Figure
