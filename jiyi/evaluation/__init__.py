"""Evaluation: how well the memories that a question needs are found, on judged questions.

`judged` reads documents and questions, `service` runs a private jiyi for them, `evaluate` asks it, `measures` has the
formulas. `trials` scores without a service what `jiyi tune` tries.
"""

from jiyi.evaluation.judged import JudgedQuery, JudgedSet, read_judged
from jiyi.evaluation.measures import Scores, measure

__all__ = ["JudgedQuery", "JudgedSet", "Scores", "measure", "read_judged"]
