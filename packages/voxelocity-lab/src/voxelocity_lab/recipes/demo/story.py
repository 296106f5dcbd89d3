"""The story of two minutes: a plain MONAI script, what holds it back, one import line changed, `voxelocity train`.

The parts run one after another, so that none takes cores from another. Scripts end by their own clock and a training by
its budget, which bounds the whole on a slow machine too.
"""

from __future__ import annotations

import json
import os
import shutil
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import yaml
from rich.console import Console

from voxelocity.report import LabeledRun, label_run, read_run
from voxelocity_lab.bench import race as race_scripts
from voxelocity_lab.bench.body import make_bodies
from voxelocity_lab.bench.phantom import writable_folder
from voxelocity_lab.bench.race.job import script_job
from voxelocity_lab.bench.race.scenario import PHANTOM_PEER_KEYS
from voxelocity_lab.bench.race.sides import Race, own_keys, plan_race
from voxelocity_lab.recipes.demo.film import make_film
from voxelocity_lab.recipes.demo.page import story_document
from voxelocity_lab.recipes.demo.parts import (
    Follow,
    PartTimes,
    python_command,
    run_history,
    run_part,
    script_history,
    script_run,
    shown_command,
)
from voxelocity_lab.recipes.demo.records import (
    CHANGED,
    FAST,
    IMPORT_AFTER,
    IMPORT_BEFORE,
    OURS,
    PLAIN,
    Story,
    StorySettings,
)
from voxelocity_observe.core.host import cpu_budget
from voxelocity_observe.core.quantities import dice_text, duration_text
from voxelocity_observe.core.whole_file import write_whole
from voxelocity_observe.diagnose.result import Diagnosis, read_diagnosis
from voxelocity_observe.document import Document, write_page

_PLAIN_SCRIPT = Path(__file__).with_name("plain_script.py")
_FAST_SCRIPT = Path(race_scripts.__file__).with_name("monai_script.py")
# Two steps of the plain script take about a second on two cores. Stages timed on their own would take 15 to 20 s more,
# and the first cause is the same without them.
_WATCHED_S = 4.0
# Lines of progress of a script in the terminal; `voxelocity train` has twice its time.
_MOST_LINES = 4
_CHECKPOINT_KEYS: Mapping[str, Any] = {"train.checkpoint_every_s": 0.5, "train.keep_checkpoints": 200}
_TEMPORARY = ("cache", "plan", "ours")


def run_story(out: Path, settings: StorySettings, *, console: Console) -> Document:
    """The page, after every part has run; `out` then holds it as `demo.html` and `demo.json`, next to the scripts.

    Phantoms in `out` are reused, the rest is replaced.

    Raises:
        OutputError: `out` cannot be written.
        VoxelocityError: a part failed; its log is in `out`.
    """
    writable_folder(out, option="-o", where="demo")
    parts = _Parts(out, settings, console)
    story = parts.run()
    document = story_document(story)
    write_page(document, out / "demo.html")
    write_whole(out / "demo.json", (json.dumps(document.to_plain(), indent=1) + "\n").encode())
    for name in _TEMPORARY:
        shutil.rmtree(out / name, ignore_errors=True)
    return document


class _Parts:
    """Runs the parts in order; each leaves what it found."""

    def __init__(self, out: Path, settings: StorySettings, console: Console) -> None:
        self.out, self.settings, self.console = out, settings, console
        self.times, self.load = PartTimes(), _load()
        self.sides: list[LabeledRun] = []
        self.commands: list[str] = []
        self.scripts = {PLAIN: out / "plain.py", CHANGED: out / "changed.py"}

    def run(self) -> Story:
        """All parts."""
        text = _PLAIN_SCRIPT.read_text()
        assert text.count(IMPORT_BEFORE) == 1, "the script imports MONAI's data sets in one line"
        self.scripts[PLAIN].write_text(text)
        self.scripts[CHANGED].write_text(text.replace(IMPORT_BEFORE, IMPORT_AFTER))
        with self._part("phantoms", f"{self.settings.num_cases} CT-like phantoms with three organs"):
            dataset = make_bodies(
                self.out / "phantoms", self.settings.num_cases, seed=self.settings.seed, scale=self.settings.scale
            )
        with self._part(PLAIN, "A typical MONAI script, for a short while"):
            self._script(PLAIN, dataset)
        with self._part("diagnose", "What is the script's bottleneck?"):
            diagnosis = self._diagnose(dataset)
        with self._part(CHANGED, "The same script with one import line changed"):
            self._say(f"- {IMPORT_BEFORE}", f"+ {IMPORT_AFTER}")
            self._script(CHANGED, dataset)
        with self.times.part("the fast recipe's settings"):
            race = self._race(dataset)
        with self._part(FAST, "For comparison: MONAI's own guide to fast training, applied by hand"):
            self._fast(race)
        with self._part(OURS, "The same network with one command"):
            run = self._ours(race)
        with self._part("pictures", "Predictions of a held-out case as they improved"):
            film = make_film(read_run(run), race.planned.cases.split(race.planned.fold).validation[0])
            self._say(*(frame.title for frame in film.frames))
        return Story(
            settings=self.settings,
            out=self.out,
            sides=tuple(self.sides),
            commands=tuple(self.commands),
            diagnosis=diagnosis,
            film=film,
            spent=tuple(self.times.spent),
            num_cpus=cpu_budget(),
            load=self.load,
        )

    def _part(self, name: str, title: str) -> Any:
        self.console.rule(title)
        return self.times.part(name)

    def _say(self, *lines: str) -> None:
        for line in lines:
            self.console.print(line, highlight=False, soft_wrap=True)

    def _follow(self) -> Follow:
        """Prints some of the validations, evenly over the time."""
        every_s = self.settings.side_s / _MOST_LINES
        last_s = -every_s

        def follow(seconds: float, dice: float) -> None:
            nonlocal last_s
            if seconds - last_s >= every_s:
                last_s = seconds
                self._say(f"  {seconds:5.1f} s  Dice {dice_text(dice)}")

        return follow

    def _run(
        self,
        label: str,
        command: Sequence[str],
        history: Callable[[], Sequence[tuple[float, float]]],
        *,
        is_clocked: bool = True,
    ) -> float:
        """Wall seconds. A script whose time counts from the start of its process gets to know when that was."""
        self.commands.append(shown_command(command))
        self._say(f"$ {self.commands[-1]}")
        began = ("--began", f"{time.time():.3f}") if is_clocked else ()
        return run_part([*command, *began], self._log(label), history=history, on_validation=self._follow())

    def _add(self, run: LabeledRun) -> None:
        self.sides.append(run)
        # The last validation on the way, as all sides have it.
        last = [f"Dice {dice_text(dice)} after {duration_text(seconds)}" for seconds, dice in run.dice_history[-1:]]
        epoch = f", {duration_text(run.seconds_per_epoch)} an epoch" if run.seconds_per_epoch else ""
        self._say(f"{''.join(last) or 'no validation in that time'}{epoch}")

    def _log(self, label: str) -> Path:
        return self.out / f"{label.replace(' ', '_').replace(chr(39), '')}.log"

    def _script(self, label: str, dataset: Path) -> None:
        settings, log = self.settings, self._log(label)
        words = ("--seconds", f"{settings.side_s:g}", "--target", settings.target_dice, "--seed", settings.seed)
        command = python_command(self.scripts[label], dataset, *words)
        wall_s = self._run(label, command, lambda: script_history(log))
        self._add(script_run(label, log, wall_s=wall_s, target_dice=settings.target_dice))

    def _diagnose(self, dataset: Path) -> Diagnosis:
        folder = self.out / "diagnosis"
        shutil.rmtree(folder, ignore_errors=True)
        watched = python_command(self.scripts[PLAIN], dataset)
        command = python_command(
            *("-m", "voxelocity", "diagnose", "-o", folder, "--seconds", f"{_WATCHED_S:g}"),
            *("--no-experiments", "--", *watched),
        )
        self._say(f"$ {shown_command(command)}")
        run_part(command, self._log("diagnose"))
        diagnosis = read_diagnosis(folder)
        self._say(diagnosis.verdict)
        for cause in diagnosis.causes[:2]:
            faster = "" if cause.speedup is None else f": {cause.speedup:.1f} times faster ({cause.basis})"
            self._say(f"[{cause.code}] {cause.title}{faster}")
        return diagnosis

    def _race(self, dataset: Path) -> Race:
        keys = self.settings.keys
        return plan_race(
            dataset,
            self.out,
            overrides={**PHANTOM_PEER_KEYS, **keys},
            keys=keys,
            target_dice=self.settings.target_dice,
            limit_s=self.settings.side_s,
        )

    def _fast(self, race: Race) -> None:
        settings, log, job = self.settings, self._log(FAST), self.out / "fast.job.json"
        values = script_job(
            race.planned,
            recipe="fast",
            target_dice=settings.target_dice,
            budget_s=settings.side_s,
            epochs_per_validation=race.epochs_per_validation,
        )
        write_whole(job, json.dumps(values | {"seed": settings.seed}, indent=1).encode())
        shutil.copyfile(_FAST_SCRIPT, self.out / "fast.py")
        command = python_command(self.out / "fast.py", job, "--out", self.out / "fast.json")
        wall_s = self._run(FAST, command, lambda: script_history(log))
        run = script_run(FAST, log, wall_s=wall_s, target_dice=settings.target_dice)
        # It writes down what the other scripts print.
        epoch_s = json.loads((self.out / "fast.json").read_text())["seconds_per_epoch"]
        self._add(replace(run, seconds_per_epoch=epoch_s))

    def _ours(self, race: Race) -> Path:
        folder, config, cache = self.out / "ours", self.out / "ours.yaml", self.out / "cache"
        # The first run of a new user pays for filling the cache; so does this one.
        for path in (folder, cache):
            shutil.rmtree(path, ignore_errors=True)
        own = {**own_keys(race), **_CHECKPOINT_KEYS, "train.time_budget_s": 2.0 * self.settings.side_s}
        config.write_text(yaml.safe_dump({**own, "data.cache.folder": str(cache), "seed": self.settings.seed}))
        words = ("-o", folder, "--fold", race.planned.fold, "--config", config)
        self._run(
            OURS,
            python_command("-m", "voxelocity", "train", race.dataset, *words),
            lambda: run_history(folder),
            is_clocked=False,
        )
        self._add(label_run(read_run(folder), OURS, target_dice=self.settings.target_dice))
        # The checkpoints are for the film alone.
        shutil.copyfile(folder / "report.html", self.out / "training.html")
        return folder


def _load() -> float | None:
    return os.getloadavg()[0] if hasattr(os, "getloadavg") else None
