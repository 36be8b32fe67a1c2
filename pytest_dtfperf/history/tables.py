"""The tables of a history, as they are in this version. docs/history.md describes them for users of SQL.

A change here is a new file in migrations/versions/, too; a test compares what those make with this module.
"""

from sqlalchemy import JSON, Boolean, Column, Float, ForeignKeyConstraint, Index, Integer, MetaData, String, Table, Text

tables = MetaData(
    naming_convention={
        "ix": "ix_%(table_name)s_%(column_0_N_name)s",
        "fk": "fk_%(table_name)s_%(column_0_N_name)s",
        "pk": "pk_%(table_name)s",
    }
)

sessions = Table(
    "sessions",
    tables,
    Column("id", String(64), primary_key=True),
    Column("started", String(40), nullable=False),  # UTC, ISO 8601, so that texts sort as times do
    Column("cluster", Text, nullable=False),
    Column("wall_s", Float),  # None: it was ended before it could finish
    Column("exit_code", Integer),
    Column("command", JSON, nullable=False),
    Column("versions", JSON, nullable=False),  # of this package and what it runs on: name to version
    Column("verdicts", JSON, nullable=False),  # verdict to number of tests
    Column("commit", String(64)),  # of the repository that held the tests, if it was one
    Column("usd", Float),  # what its hosts have cost, estimated; None: they had no price
    Column("folder", Text, nullable=False),  # where it was when it was entered
    Column("content", String(64), nullable=False),  # digest of what was entered: the same is not entered again
    Column("watched", Boolean, nullable=False),  # whether its rates have been searched for changes
    Index(None, "started"),
)

fingerprints = Table(
    "fingerprints",
    tables,
    Column("digest", String(32), primary_key=True),
    Column("content", JSON, nullable=False),  # hardware, software and program, each once, for nights are alike
)

measurements = Table(
    "measurements",
    tables,
    Column("session", String(64), primary_key=True),
    Column("id", String(64), primary_key=True),
    Column("position", Integer, nullable=False),  # in its session, from 0
    Column("test", Text, nullable=False),
    Column("spec_key", Text, nullable=False),  # what a rate depends on; what a baseline is stored under
    Column("label", Text, nullable=False),
    Column("spec", JSON, nullable=False),  # what is not as usual
    Column("model", Text, nullable=False),
    Column("batch_size", Integer, nullable=False),
    Column("gpus", Integer, nullable=False),
    Column("num_ps", Integer, nullable=False),
    Column("variable_update", Text, nullable=False),
    Column("system", Text, nullable=False),
    Column("hosts", Integer, nullable=False),
    Column("fingerprint", String(32), nullable=False),
    Column("program", String(64)),  # hash of the graphs that were trained
    Column("verdict", String(32)),
    Column("reason", Text),
    Column("runs", Integer, nullable=False),  # those that its rate rests on
    Column("images_per_sec", Float, nullable=False),  # their median
    Column("mean_log", Float, nullable=False),  # mean of the natural logarithms of their rates
    Column("spread", Float),  # standard deviation of these; None: it was one run
    Column("noise_run", Float),  # as calibrated with its baseline; None: it was not
    Column("noise_session", Float),
    Column("efficiency", Float),
    Column("baseline", Float),  # images/sec
    Column("change", Float),  # measured / baseline - 1, of the geometric means of their runs
    Column("accepted", Boolean, nullable=False),  # its session has made it a baseline
    Column("in_series", Boolean, nullable=False),  # its numbers may be compared with other nights'
    Column("step_breakdown", JSON),  # of a step, of the last run that was traced
    ForeignKeyConstraint(["session"], ["sessions.id"], ondelete="CASCADE"),
    ForeignKeyConstraint(["fingerprint"], ["fingerprints.digest"]),
    Index(None, "spec_key"),
)

_OF_A_MEASUREMENT = ["measurements.session", "measurements.id"]

runs = Table(
    "runs",
    tables,
    Column("session", String(64), primary_key=True),
    Column("measurement", String(64), primary_key=True),
    Column("number", Integer, primary_key=True),  # from 1
    Column("images_per_sec", Float, nullable=False),
    Column("elapsed_s", Float, nullable=False),
    Column("wall_s", Float, nullable=False),
    Column("accuracy", Float),
    Column("disturbances", JSON, nullable=False),  # by whom or what; empty: it may be believed
    ForeignKeyConstraint(["session", "measurement"], _OF_A_MEASUREMENT, ondelete="CASCADE"),
)

hosts = Table(
    "hosts",
    tables,
    Column("session", String(64), primary_key=True),
    Column("measurement", String(64), primary_key=True),
    Column("position", Integer, primary_key=True),
    Column("name", Text, nullable=False),
    ForeignKeyConstraint(["session", "measurement"], _OF_A_MEASUREMENT, ondelete="CASCADE"),
)

host_readings = Table(
    "host_readings",
    tables,
    Column("session", String(64), primary_key=True),
    Column("position", Integer, primary_key=True),  # in its session, from 0
    Column("host", Text, nullable=False),
    Column("kind", Text, nullable=False),  # its hardware
    Column("name", Text, nullable=False),  # of the capacity
    Column("conditions", Text, nullable=False),  # readings that differ in it are not compared
    Column("per_s", Float, nullable=False),
    Column("verdict", String(32)),  # of a qualification
    ForeignKeyConstraint(["session"], ["sessions.id"], ondelete="CASCADE"),
    Index(None, "host"),
)

tracks = Table(
    "tracks",
    tables,
    Column("series", String(64), primary_key=True),  # digest of what its measurements have in common
    Column("state", JSON, nullable=False),  # what the search for changes goes on with
)

events = Table(
    "events",
    tables,
    Column("id", Integer, primary_key=True, autoincrement=True),
    Column("kind", String(16), nullable=False),  # step, drift
    Column("state", String(16), nullable=False),  # confirmed, reverted
    Column("found", String(64), nullable=False),  # the session with the rates that confirmed it
    Column("found_at", String(40), nullable=False),
    Column("last_good", String(64), nullable=False),  # the last session before it, and when that began
    Column("last_good_at", String(40), nullable=False),
    Column("first_bad", String(64), nullable=False),  # the first session of the other rate; of a drift, its begin
    Column("first_bad_at", String(40), nullable=False),
    Column("members", JSON, nullable=False),  # of each series: what it is, and by how much its rate is another
    Column("differences", JSON, nullable=False),  # of what is only noted, between these two sessions
    Column("promise", JSON, nullable=False),  # what was promised of false events when it was found
    Index(None, "first_bad_at"),
)
