"""Runs cases one after another, each with a time limit, prints a line for each and counts them."""

import signal
import time
import traceback


class CaseTimeout(BaseException):
    """A case ran past its limit. Not an Exception, so that no case takes it for one of its own."""


class Skipped(Exception):
    """A case cannot be run here, for the reason given."""


def until(probe, what, state=None):
    """Waits until `probe` returns something true, and returns it. The case's limit ends the wait; the
    report then says what was waited for, and what `state` returns, which must not block."""
    try:
        while not (found := probe()):
            time.sleep(0.05)
        return found
    except CaseTimeout as error:
        raise CaseTimeout(f", waiting for {what}{f', with {state()}' if state else ''}") from error


class Report:
    def __init__(self, only=None):
        self.only = only
        self.passed, self.failed, self.skipped = 0, [], 0

    def run(self, name, seconds_max, case):
        """Runs `case` and says whether it did not fail. What it returns, if anything, is printed as a note."""
        if self.only and self.only not in name:
            return True

        def expire(*_):
            raise CaseTimeout

        signal.signal(signal.SIGALRM, expire)
        begin = time.monotonic()
        problem = note = skipped = None
        try:
            signal.setitimer(signal.ITIMER_REAL, seconds_max)
            note = case()
        except Skipped as error:
            skipped = error
        except CaseTimeout as error:
            problem = f"not done after {seconds_max} s{error}, at {position(error)}"
        except AssertionError as error:
            problem = f"{error or 'assertion failed'}, at {position(error)}"
        except Exception as error:
            problem = f"{type(error).__name__}: {error}, at {position(error)}"
        finally:
            signal.setitimer(signal.ITIMER_REAL, 0)
        seconds = time.monotonic() - begin
        if skipped is not None:
            self.skipped += 1
            print(f"skip  {seconds:6.1f} s  {name}: {skipped}", flush=True)
        elif problem is None:
            self.passed += 1
            print(f"ok    {seconds:6.1f} s  {name}{f' ({note})' if note else ''}", flush=True)
        else:
            self.failed.append(name)
            print(f"FAIL  {seconds:6.1f} s  {name}: {problem}", flush=True)
        return problem is None

    def finish(self):
        """Prints the closing line and returns the exit code."""
        for name in self.failed:
            print(f"failed: {name}")
        skipped = f", {self.skipped} skipped" if self.skipped else ""
        print(f"{self.passed} passed, {len(self.failed)} failed{skipped}", flush=True)
        return 1 if self.failed or not self.passed else 0


def position(error):
    """The lines of the suite's own code that led to the error, innermost last."""
    frames = [f for f in traceback.extract_tb(error.__traceback__) if "/tests/" in f.filename]
    return " > ".join(f"{f.filename.rpartition('/')[2]}:{f.lineno}" for f in frames[1:])
