"""What the adversary found: a line for each failure as it comes, a table of the worst of every API at the end."""

from dataclasses import dataclass

from gauge import MEGABYTE, Cost

COLUMNS = ("API", "versions", "frame bytes", "worst kind", "peak MB", "wait ms", "2,000 topics ms", "kept MB", "answer bytes")


@dataclass
class Row:
    version: int
    kind: str
    frame_bytes: int
    cost: Cost
    failed: bool

    def weight(self):
        """Failures first; then what is largest in parts of its bound, as far as bounds are alike."""
        return self.failed, max(self.cost.peak_bytes / MEGABYTE, self.cost.wait_seconds * 1000)


class Tally:
    def __init__(self, name, counts=True):
        self.name, self.counts = name, counts
        self.rows, self.passed, self.failed = {}, 0, []

    def unknown(self, key, problem):
        self.fail(f"API {key}", problem)

    def broken(self, problem):
        self.fail(self.name, problem)

    def fail(self, what, problem):
        if self.counts:
            self.failed.append(what)
        print(f"FAIL  {what}: {problem}", flush=True)

    def note(self, api, version, kind, frame_bytes, cost, wrong):
        self.rows.setdefault(api, []).append(Row(version, kind, frame_bytes, cost, bool(wrong)))
        facts = (f"{frame_bytes} bytes, {cost.peak_bytes // MEGABYTE:+} MB, {cost.wait_seconds * 1000:.0f} ms,"
                 f" {cost.large_wait_seconds * 1000:.0f} ms, answer {answer_bytes(cost)}, others {cost.others_cores:.1f} cores")
        if wrong:
            self.fail(f"{api} v{version} {kind}", f"{'; '.join(wrong)} ({facts})")
        else:
            self.passed += self.counts
            print(f"ok    {api} v{version} {kind} ({facts})", flush=True)

    def table(self, markdown=False):
        lines = [COLUMNS]
        for api, rows in self.rows.items():
            worst = max(rows, key=Row.weight)
            versions = sorted({row.version for row in rows})
            lines.append((api, ", ".join(map(str, versions)), f"{worst.frame_bytes:,}", f"v{worst.version} {worst.kind}",
                          f"{max(row.cost.peak_bytes for row in rows) // MEGABYTE}",
                          f"{max(row.cost.wait_seconds for row in rows) * 1000:.0f}",
                          f"{max(row.cost.large_wait_seconds for row in rows) * 1000:.0f}",
                          f"{max(row.cost.kept_bytes for row in rows) // MEGABYTE}", f"{answer_bytes(worst.cost):,}"))
        if markdown:
            lines.insert(1, tuple("---" if at in (0, 1, 3) else "---:" for at in range(len(COLUMNS))))
            return f"{self.name}\n\n" + "\n".join(f"| {' | '.join(line)} |" for line in lines)
        widths = [max(map(len, column)) for column in zip(*lines)]
        return f"{self.name}\n" + "\n".join("  ".join(cell.ljust(width) for cell, width in zip(line, widths)).rstrip()
                                            for line in lines)


def answer_bytes(cost):
    return max((size for _, _, size in cost.outcome or ()), default=0)
