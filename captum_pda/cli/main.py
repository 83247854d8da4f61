"""The command line: its parser, warnings, errors and exit codes."""

from __future__ import annotations

import argparse
import io
import sys
import time
import warnings
from collections.abc import Sequence
from datetime import timedelta

import torch.distributed as dist

from captum_pda._version import __version__
from captum_pda.cli import atlas, demo, explain, fit_prior
from captum_pda.cli.usage_errors import CommandError, UsageError, one_line
from captum_pda.distributed import OtherRankError, Ranks

COMMANDS = {"demo": demo, "explain": explain, "atlas": atlas, "fit-prior": fit_prior}
#: A process may wait for another one's largest photo; a dead process is noticed at once.
PATIENCE = timedelta(days=7)
#: More than a thread of gloo needs to release its last message.
SECONDS_TO_SETTLE = 0.2

DESCRIPTION = """\
Which parts of a photo speak for a classifier's answer, and which against it?

captum-pda hides a region of the photo, asks what the classifier would say without it, and reports
the difference in bits: red speaks for the class, blue against it."""

EXAMPLES = """\
examples:
  captum-pda demo                                   two photos, and one picture of their evidence
  captum-pda explain cat.jpg                        why the top class?
  captum-pda explain *.jpg --classes 3 --output out the top three classes of many photos
  torchrun --nproc-per-node=4 --no-python captum-pda explain photos/ --output out
  captum-pda explain cat.jpg --contrast tabby lynx  why "tabby" rather than "lynx"?
  captum-pda explain cat.jpg --model resnet50       any classifier of torchvision
  captum-pda explain cat.jpg --model timm/NAME      of timm; hf/NAME of transformers
  captum-pda explain cat.jpg --model mine:model     a function of your own that returns a model
  captum-pda explain xray.dcm --model mine:model    16-bit images, DICOM, NIfTI, unchanged in value
  captum-pda explain ct/ --series --model mine:model      a folder of DICOM slices as a volume
  captum-pda explain street.jpg --model torchvision/ssdlite320_mobilenet_v3_large    each box
  captum-pda explain photos/ --output out --html    a page of each photo, and an index of them
  captum-pda atlas huskies/ --class husky --output atlas  what speaks for "husky" in many photos?
  captum-pda fit-prior photos/ --output mine.safetensors
  captum-pda explain cat.jpg --prior mine.safetensors

`captum-pda COMMAND --help` lists what a command takes.
Exit codes: 0 all done, 1 something failed, 2 wrong usage, 130 stopped by ctrl-C."""


def make_parser() -> argparse.ArgumentParser:
    """The parser of all commands."""
    parser = argparse.ArgumentParser(
        prog="captum-pda",
        description=DESCRIPTION,
        epilog=EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--version", action="version", version=f"captum-pda {__version__}")
    commands = parser.add_subparsers(metavar="COMMAND", required=True)
    for name, module in COMMANDS.items():
        added = commands.add_parser(name, help=module.HELP, description=module.DESCRIPTION)
        module.add_options(added)
        added.add_argument(
            "--overwrite",
            action="store_true",
            help="replace files of these names even if captum-pda did not write them",
        )
        added.add_argument("--quiet", action="store_true", help="no progress bar, and only errors")
        added.add_argument("--debug", action="store_true", help="show the traceback of an error")
        added.set_defaults(run=module.run)
    return parser


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a command, such as ``main(["explain", "cat.jpg"])``; returns its exit code."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):  # what a terminal cannot show becomes an escape
            stream.reconfigure(errors="backslashreplace")
    with warnings.catch_warnings():
        warnings.showwarning = _note
        # Commands show the estimated time themselves.
        warnings.filterwarnings("ignore", message="this will take a while")
        try:
            options = make_parser().parse_args(arguments)
        except SystemExit as ended:  # argparse has said what is wrong, or shown the help.
            return int(ended.code or 0)
        try:
            return run_on_ranks(options)
        except KeyboardInterrupt:
            print(
                "\ncaptum-pda: stopped; of a folder, the same command goes on with what is left",
                file=sys.stderr,
            )
            return 130
        except Exception as error:  # any error is printed in one line
            if options.debug:
                raise
            is_clear = isinstance(error, CommandError | ValueError | OSError)
            kind = type(error).__name__
            hint = "" if is_clear else f" ({kind}; run again with --debug to see where)"
            print(f"captum-pda: error: {one_line(error)}{hint}", file=sys.stderr)
            return getattr(error, "exit_code", 1)


def run_on_ranks(options: argparse.Namespace) -> int:
    """Run a command in all processes that torchrun started, and return its exit code."""
    if not dist.is_torchelastic_launched():
        return int(options.run(options, Ranks()))
    # Ranks exchange little, for which the GPUs are not needed.
    dist.init_process_group("gloo", timeout=PATIENCE)
    ranks = Ranks(dist.group.WORLD)
    try:
        return int(options.run(options, ranks))
    except (UsageError, OtherRankError):
        if ranks.rank == 0:
            raise
        return 0  # The first process prints the error for all.
    finally:
        # Older versions of PyTorch wait for gloo's thread with the lock that it needs itself.
        time.sleep(SECONDS_TO_SETTLE)
        dist.destroy_process_group()


def _note(message: Warning | str, *_: object, **__: object) -> None:
    print(f"captum-pda: note: {one_line(message)}", file=sys.stderr)
