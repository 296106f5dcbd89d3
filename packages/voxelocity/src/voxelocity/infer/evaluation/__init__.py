"""Predictions on disk, compared with the truth: scores of every class and case, pooled, as files and a page.

`pairs` finds the truth of each prediction, `volumes` brings both onto one grid, `evaluate` scores, `page` shows.
"""

from voxelocity.infer.evaluation.evaluate import Evaluation, evaluate, pool_runs, score_predictions
from voxelocity.infer.evaluation.page import evaluation_view, write_evaluation

__all__ = ["Evaluation", "evaluate", "evaluation_view", "pool_runs", "score_predictions", "write_evaluation"]
