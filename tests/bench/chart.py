"""What OMB's own chart script (bin/create_charts.py there) takes from a result, read and computed as it does.

It names no default and catches nothing: a field that is missing or of another type ends it. So here.
"""

import math

SERIES = ("publishLatency99pct", "publishDelayLatency99pct", "publishRate", "publishErrorRate", "endToEndLatency95pct",
          "consumeRate", "endToEndLatencyAvg")
QUANTILES = ("aggregatedPublishLatencyQuantiles", "aggregatedPublishDelayLatencyQuantiles",
             "aggregatedEndToEndLatencyQuantiles")


def draw(result):
    """The points of its ten charts; asserts that each is a curve."""
    assert isinstance(result["workload"], str) and isinstance(result["driver"], str), "names"
    lengths = set()
    for name in SERIES:
        points = [(10 * at, value) for at, value in enumerate(result[name])]
        assert points, f"{name} has no samples"
        top = max(value for _, value in points) * 1.2
        assert math.isfinite(top) and top >= 0, f"{name} reaches {top}"
        lengths.add(len(points))
    assert len(lengths) == 1, f"series of several lengths: {lengths}"
    for name in QUANTILES:
        values = sorted((float(at), value) for at, value in result[name].items())
        points = [(math.log10(100 / (100 - at)), value) for at, value in values if at <= 99.999]
        assert len(points) >= 5, f"{name} has {len(points)} points"
        latencies = [value for _, value in points]
        assert latencies == sorted(latencies), f"{name} falls"
    return lengths.pop()
