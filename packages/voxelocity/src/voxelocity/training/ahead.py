"""The kernels of a run, compiled while its cases are being cached."""

from __future__ import annotations

from voxelocity.core.batch import ImageFormat
from voxelocity.core.compiling import compile_all
from voxelocity.core.kernels import Launch
from voxelocity.core.volume import VolumeSpec
from voxelocity.data.pipeline import compile_kernels
from voxelocity.infer import ahead as of_windows
from voxelocity.step import ahead as of_step
from voxelocity.step import image_format
from voxelocity.step.fused_loss import LossForm
from voxelocity.training.session import Session

_USUAL_DTYPE = "int16"


class Compiling:
    """Compiles the kernels of feed, step and validation; does nothing without a CUDA device.

    Begins with what nearly all scans are stored as, and corrects itself when the first case is ready.
    """

    def __init__(self, session: Session) -> None:
        self._session = session
        self._known: set[tuple[str, int]] = set()
        self._compile(_USUAL_DTYPE, len(session.spec.channels))
        if session.plan.data.feed.compiles_ahead and session.device.type == "cuda":
            compile_all(lambda: launches_of(session), session.device)

    def begin(self, spec: VolumeSpec) -> None:
        """A case of this kind is among those that batches are made from."""
        self._compile(spec.dtype, spec.num_channels)

    def _compile(self, dtype: str, num_channels: int) -> None:
        if (dtype, num_channels) not in self._known:
            self._known.add((dtype, num_channels))
            compile_kernels(
                self._session.plan.data,
                num_channels=num_channels,
                dtypes=[dtype],
                class_names=self._session.planned.cases.class_names,
                device=self._session.device,
                image_format=image_format_of(self._session),
            )


def image_format_of(session: Session) -> ImageFormat:
    """In which format the steps take images."""
    plan = session.plan
    return image_format(plan.network, plan.precision, num_channels=len(session.spec.channels))


def launches_of(session: Session) -> list[Launch]:
    """What the steps and the validations of a run can launch, each once; the first step's come first."""
    plan, spec = session.plan, session.spec
    loss = LossForm(
        num_classes=spec.num_outputs,
        is_channels_last=plan.precision.channels_last and spec.num_outputs > 1,
        config=plan.loss,
        has_regions=len(spec.regions) > 0,
        has_ignored=spec.ignored is not None,
    )
    steps = of_step.possible_launches(
        plan.network,
        loss,
        plan.precision,
        plan.backend,
        num_channels=len(spec.channels),
        patch_shapes=plan.data.patch.all_shapes,
        is_shared=not session.world.is_alone,
    )
    return [*steps, *of_windows.possible_launches(spec, session.device)]
