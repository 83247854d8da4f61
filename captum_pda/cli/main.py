"""The command line: its parser, warnings, errors and exit codes."""

from __future__ import annotations

import argparse
import io
import sys
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import partial

from captum_pda._version import __version__
from captum_pda.cli import atlas, demo, explain, fit_prior
from captum_pda.cli.explain import run_on_ranks
from captum_pda.cli.usage_errors import CommandError, one_line

COMMANDS = {"demo": demo, "explain": explain, "atlas": atlas, "fit-prior": fit_prior}

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
        added.add_argument("--quiet", action="store_true", help="no progress bar, and only errors")
        added.add_argument("--debug", action="store_true", help="show the traceback of an error")
        added.set_defaults(run=module.run)
    return parser


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a command; the return value is its exit code.

    Example::

        >>> main(["explain", "cat.jpg", "--target", "tabby"])
        0
    """
    with any_text_printed(), warnings.catch_warnings():
        warnings.showwarning = _note
        # Commands show the time that is left themselves.
        warnings.filterwarnings("ignore", message="this will take a while")
        try:
            options = make_parser().parse_args(arguments)
        except SystemExit as ended:  # argparse has said what is wrong, or shown the help.
            return int(ended.code or 0)
        try:
            return run_on_ranks(partial(options.run, options))
        except KeyboardInterrupt:
            print("\ncaptum-pda: stopped", file=sys.stderr)
            return 130
        except Exception as error:  # any error is printed in one line
            if options.debug:
                raise
            is_clear = isinstance(error, CommandError | ValueError | OSError)
            kind = type(error).__name__
            hint = "" if is_clear else f" ({kind}; run again with --debug to see where)"
            print(f"captum-pda: error: {one_line(error)}{hint}", file=sys.stderr)
            return getattr(error, "exit_code", 1)


@contextmanager
def any_text_printed() -> Iterator[None]:
    """Let what a terminal cannot show, such as a photo's name, be printed as an escape."""
    streams = [one for one in (sys.stdout, sys.stderr) if isinstance(one, io.TextIOWrapper)]
    before = [stream.errors for stream in streams]
    for stream in streams:
        stream.reconfigure(errors="backslashreplace")
    try:
        yield
    finally:
        for stream, errors in zip(streams, before, strict=True):
            stream.reconfigure(errors=errors)


def _note(message: Warning | str, *_: object, **__: object) -> None:
    """A warning in one line, with this command's names for options of the library."""
    print(f"captum-pda: note: {one_line(message)}", file=sys.stderr)
