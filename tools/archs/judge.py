"""How far logits are from the reference's, and whether that is too far."""

from dataclasses import dataclass, field

import numpy as np

# Of the largest logit of a row.
MOST_DIFFERENCE = 1e-3
# Where the best two are closer than this, either may win.
CLOSE = 2e-3


@dataclass
class Verdict:
    difference: float
    faults: list = field(default_factory=list)


def read(path):
    """Rows of logits out of a file: rows and columns as 32-bit integers, then 32-bit floats."""
    data = path.read_bytes()
    rows, columns = np.frombuffer(data, "<u4", 2)
    return np.frombuffer(data, "<f4", offset=8).reshape(rows, columns)


def compare(expected, found):
    """Rows of ours with the reference's rows; fewer of ours are the first."""
    expected = expected[: len(found)]
    if expected.shape != found.shape:
        return Verdict(np.inf, [f"{found.shape} instead of {expected.shape}"])
    if not np.isfinite(expected).all():
        return Verdict(np.nan, ["the reference's logits are not finite"])
    largest = np.abs(expected).max(axis=1)
    # A number that is not one compares as false, and is found all the same.
    distance = np.abs(found - expected).max(axis=1) / largest
    worst = float(distance.max()) if np.isfinite(distance).all() else np.inf
    verdict = Verdict(worst)
    if not worst <= MOST_DIFFERENCE:
        verdict.faults.append(f"row {int(np.nan_to_num(distance, nan=np.inf).argmax())} is off by {worst:.1e}")
    best = np.sort(expected, axis=1)[:, -2:]
    clear = best[:, 1] - best[:, 0] > CLOSE * largest
    other = clear & (expected.argmax(axis=1) != found.argmax(axis=1))
    if other.any():
        verdict.faults.append(f"another best token in {int(other.sum())} of {len(other)} rows")
    return verdict


# How much larger our error may be than the reference's own. Where the reference is nearer to the exact logits than this, its error
# says nothing about caches: with random weights some models attend to next to nothing, and what is left is the order in which sums of
# F32 are added up.
MOST_TIMES = 1.5
FLOOR = 1e-5


def error(exact, found):
    """How far rows are from the exact ones: the root of the mean square of all differences, relative to the largest logits."""
    if found.shape != exact.shape or not np.isfinite(found).all():
        return np.inf
    largest = np.abs(exact).max(axis=1, keepdims=True)
    return float(np.sqrt(np.mean(np.square((found - exact).astype(np.float64) / largest))))
