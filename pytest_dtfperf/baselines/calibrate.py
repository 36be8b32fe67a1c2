"""Estimate the noise of each training's rate from several sessions between which nothing was changed."""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace

from pytest_dtfperf.baselines.comparability import describe_notes, list_forbidden_differences, system_name
from pytest_dtfperf.baselines.entry import CalibratedNoise, Entry
from pytest_dtfperf.baselines.terms import ComparisonPolicy, share
from pytest_dtfperf.baselines.verdict import FALSE_ALARMS
from pytest_dtfperf.datamodel.measurement import Measurement
from pytest_dtfperf.errors import UsageError
from pytest_dtfperf.formats import format_count
from pytest_dtfperf.spec import Spec
from pytest_dtfperf.stats.comparison import runs_needed
from pytest_dtfperf.stats.noise import Noise, compute_correlation, do_sessions_differ, estimate_noise, pool_spreads

LEAST_SESSIONS = 2
MARGINS = [permille / 1000 for permille in range(1, 301)]  # a test that allows a loss of more than 30 % is useless
MOST_RUNS = ComparisonPolicy().most


@dataclass(frozen=True, kw_only=True)
class SessionMeasurement:
    """A measurement, its session, and its margin there."""

    session: str  # id
    started: str  # UTC, ISO 8601
    measurement: Measurement
    margin: float | None = None
    is_valid: bool = True  # False: its numbers were found to be inconsistent

    @property
    def rates(self) -> list[float]:
        """Return images/sec of the undisturbed runs. Noise is estimated from no others, unlike a verdict."""
        if not self.is_valid or self.measurement.misplaced:
            return []
        return [run.images_per_sec for run in self.measurement.runs if not run.disturbances]


@dataclass(eq=False)
class CalibrationCase:
    """The same training on the same hardware, over all sessions that measured it."""

    first: Measurement
    rates: dict[str, list[float]] = field(default_factory=dict)  # session -> images/sec of its runs
    rare: int = 0  # runs that were excluded because they were clearly slower than the others
    left_out: int = 0  # runs that were disturbed or inconsistent
    changes: list[str] = field(default_factory=list)  # differences between sessions that allow a comparison
    date: str = ""  # of the last session
    margin: float | None = None  # of the last session

    @property
    def spec(self) -> Spec:
        return self.first.spec

    @property
    def system(self) -> str:
        return system_name(self.first.fingerprint.hardware)

    @property
    def runs(self) -> int:
        return sum(map(len, self.rates.values()))

    def covers(self, measurement: Measurement) -> bool:
        return (
            measurement.spec == self.spec
            and len(measurement.hosts) == len(self.first.hosts)
            and not list_forbidden_differences(self.first.fingerprint, measurement.fingerprint)
        )

    def add(self, added: SessionMeasurement) -> None:
        rates = added.rates
        self.left_out += len(added.measurement.runs) - len(rates)
        if rates:
            self.rates.setdefault(added.session, []).extend(rates)
            self.date = max(self.date, added.started)
        self.margin = self.margin if added.margin is None else added.margin
        changes = describe_notes(self.first.fingerprint, added.measurement.fingerprint)
        self.changes += [change for change in changes if change not in self.changes]

    @property
    def broken_conditions(self) -> list[str]:
        """Return the conditions of the documented error rates (docs/read-a-verdict.md) that these sessions do not meet."""
        sessions, found = list(self.rates.values()), []
        if resemblance := compute_correlation(sessions):
            found.append(
                f"runs resemble the run before them in their session (correlation about {resemblance:.1f}), so that they "
                "count as fewer runs. Calibrate over more sessions, on several days; --from accepts nightly sessions"
            )
        if do_sessions_differ(sessions):
            found.append(
                "all runs of a session have something in common (hosts, a NUMA placement, a clock rate), which further runs do "
                "not average out. It counts as noise of sessions, which "
                f"{format_count(len(sessions), 'session')} estimate only roughly; "
                "ten or more estimate it better"
            )
        return found

    def calibrate(self) -> CalibratedNoise:
        """Estimate the noise. Raises `ValueError` for too few data."""
        noise, self.rare = estimate_noise(list(self.rates.values()))
        return CalibratedNoise(**vars(noise), sessions=len(self.rates), date=self.date)


@dataclass(frozen=True, kw_only=True)
class CalibrationResult:
    """The result for a case. Without an entry, `message` has the reason why its noise cannot be stored."""

    case: CalibrationCase
    calibrated: CalibratedNoise | None = None
    entry: Entry | None = None
    margin: float | None = None  # the smallest detectable one
    required: float = ComparisonPolicy().margin  # the margin of its verdicts
    message: str = ""

    @property
    def is_too_noisy(self) -> bool:
        """Whether no margin is detectable with this noise, so that calibration would disable its test."""
        return self.calibrated is not None and self.margin is None


def group_cases(measurements: Iterable[SessionMeasurement]) -> list[CalibrationCase]:
    """Return the cases in the order of their first measurements.

    Raises `UsageError` for injected slow-downs or too few sessions.
    """
    everything = list(measurements)
    for one in everything:
        if one.measurement.injected_slowdowns:
            raise UsageError(
                f"session {one.session} has an injected slow-down of {', '.join(sorted(one.measurement.injected_slowdowns))}. "
                "Noise is the difference between sessions without any change; leave this one out"
            )
    sessions = {one.session for one in everything}
    if len(sessions) < LEAST_SESSIONS:
        raise UsageError(
            f"{format_count(len(sessions), 'session')} with measurements: the noise between sessions needs at least "
            f"{LEAST_SESSIONS} of them"
        )
    cases: list[CalibrationCase] = []
    for one in everything:
        case = next((case for case in cases if case.covers(one.measurement)), None)
        if case is None:
            case = CalibrationCase(one.measurement)
            cases.append(case)
        case.add(one)
    return cases


def calibrate(
    cases: Sequence[CalibrationCase],
    entries_of: Callable[[str], Sequence[Entry]],
    margin_of: Callable[[str], float | None] = lambda system: None,
) -> list[CalibrationResult]:
    """Return the noise of each case, and its entry.

    `entries_of` returns all entries of a system, `margin_of` the margin in its file, if it sets one.
    """
    found: list[CalibrationResult] = []
    for case in cases:
        entries = entries_of(case.system)
        try:
            calibrated = case.calibrate()
        except ValueError as error:
            found.append(CalibrationResult(case=case, message=str(error)))
            continue
        entry, message = _find_entry(case, entries, taken=[each.entry for each in found if each.entry])
        margin = find_smallest_margin(
            entry.samples if entry else max(case.rates.values(), key=len), calibrated, tests=max(1, len(entries))
        )
        required = next(each for each in (case.margin, margin_of(case.system), ComparisonPolicy().margin) if each is not None)
        found.append(
            CalibrationResult(case=case, calibrated=calibrated, entry=entry, margin=margin, required=required, message=message)
        )
    return found


def _find_entry(case: CalibrationCase, entries: Sequence[Entry], taken: Sequence[Entry]) -> tuple[Entry | None, str]:
    fingerprint, hosts = case.first.fingerprint, len(case.first.hosts)
    same_training = (each for each in entries if each.key == case.spec.key)
    entry = next((each for each in same_training if not each.list_differences(fingerprint, hosts)), None)
    if entry is None:
        return None, "it has no baseline yet; accept one (--update-baselines=new), then calibrate --from these sessions"
    if entry.steps != case.spec.steps:
        return None, (
            f"its baseline measured {entry.steps} steps, these sessions {case.spec.steps}: longer runs scatter less; calibrate "
            f"with --steps={entry.steps}, or accept a baseline of as many steps"
        )
    if entry in taken:
        return None, "its baseline has already received the noise of another training in this list"
    return entry, ""


def find_smallest_margin(samples: Sequence[float], noise: Noise, *, tests: int) -> float | None:
    """Return the smallest margin that `MOST_RUNS` runs can detect against a baseline of these runs; None: there is none.

    A margin is detectable if a loss of twice as much is found, as in `runs_needed`. `tests` is the number
    of tests that share a session's false alarms.
    """
    known = replace(noise, run=pool_spreads([samples], noise)[0])
    false_alarm = share(FALSE_ALARMS, tests=tests, red=0, check=0)
    for margin in MARGINS:
        needed = runs_needed(len(samples), known, margin, false_alarm)
        if needed is not None and needed <= MOST_RUNS:
            return margin
    return None
