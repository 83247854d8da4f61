"""What every command that explains photos begins with: its ranks, its model, its engines."""

from __future__ import annotations

import argparse
from collections.abc import Callable
from dataclasses import replace

from PIL import Image

from captum_pda.cli.classifier import Classifier, ModelChoice
from captum_pda.cli.explanation import PhotoExplainer
from captum_pda.cli.models import choose_model
from captum_pda.cli.photo_job import engines_for_all
from captum_pda.cli.places import Plan, check_free
from captum_pda.cli.processes import own_device, process_group
from captum_pda.cli.question import Question
from captum_pda.cli.usage_errors import UsageError
from captum_pda.distributed.ranks import OtherRankError, Ranks
from captum_pda.priors import GaussianPatchPrior

BLANK = Image.new("RGB", (256, 256))


def run_on_ranks(run: Callable[[Ranks], int]) -> int:
    """Run a command in all processes that torchrun started; its exit code."""
    with process_group() as group:
        ranks = Ranks(group)
        try:
            return run(ranks)
        except (UsageError, OtherRankError):
            if ranks.rank == 0:
                raise
            return 0  # The rank that is at fault tells, and the first one for all.


def make_explainer(
    options: argparse.Namespace, question: Question, plan: Plan, show_progress: bool = False
) -> PhotoExplainer:
    """Check everything that can be checked before a model is loaded; then load it."""
    extra = [path for path in (options.weights, options.labels, options.prior) if path]
    inputs = [*(place.photo for place in plan.places), *extra]
    check_free(plan.files, inputs, options.overwrite)
    device = own_device(options.device)
    prior = GaussianPatchPrior.load(options.prior) if options.prior else None
    choice = choose_model(options.model, options.weights, options.labels)
    check_question(question, choice)
    return PhotoExplainer(
        Classifier.of(choice, device, options.output_kind), question, prior, show_progress
    )


def check_question(question: Question, choice: ModelChoice) -> None:
    """Refuse what this model cannot be asked, as far as that is known without its weights."""
    question.check_size(choice.preprocessing(BLANK))
    if choice.labels is not None:
        question.named_classes(choice.labels)


def with_engines(
    explainer: PhotoExplainer, plan: Plan, ranks: Ranks, overwrite: bool
) -> PhotoExplainer:
    """The explainer with the engines that the first rank chooses for all."""
    with ranks.failing_together():
        engines = engines_for_all(explainer, plan.folder, overwrite) if ranks.rank == 0 else {}
    return replace(explainer, engines=ranks.gather_objects(engines)[0])
