"""How often verdicts were right, by the score of their evidence. Made by `python bench/fit_confidence.py`: do not edit."""

CURVES: dict[str, tuple[tuple[float, float], ...]] = {}
