"""The registry's tables, as a list of migrations: the database at version n has been through the first n of them.

To change the schema append a migration; never edit one that was released.
"""

from __future__ import annotations

Migration = tuple[str, ...]
"""SQL statements, run in one transaction (not one script: `executescript` would commit in between)."""

APPLICATION_ID = 0x4D4F5341
"""'MOSA' in the file's header: another program's database is not mistaken for ours."""

_RUNS = """
CREATE TABLE runs (
    number INTEGER PRIMARY KEY AUTOINCREMENT,
    run_id TEXT NOT NULL UNIQUE,
    status TEXT NOT NULL,
    outcome TEXT,
    reason TEXT NOT NULL DEFAULT '',
    name TEXT NOT NULL DEFAULT '',
    worker_type TEXT NOT NULL,
    worker_id TEXT NOT NULL DEFAULT '',
    algo TEXT NOT NULL DEFAULT '',
    env_id TEXT NOT NULL DEFAULT '',
    seed INTEGER,
    step INTEGER NOT NULL DEFAULT 0,
    total INTEGER NOT NULL DEFAULT 0,
    episodic_return REAL,
    sps REAL,
    seconds_since_step REAL,
    result TEXT,
    priority INTEGER NOT NULL DEFAULT 0,
    tags TEXT NOT NULL DEFAULT '[]',
    notes TEXT NOT NULL DEFAULT '',
    archived INTEGER NOT NULL DEFAULT 0,
    queue_reason TEXT NOT NULL DEFAULT '',
    parent TEXT,
    created_at REAL NOT NULL,
    started_at REAL NOT NULL DEFAULT 0,
    finished_at REAL NOT NULL DEFAULT 0,
    cpus REAL NOT NULL DEFAULT 1,
    gpus INTEGER NOT NULL DEFAULT 0,
    gpus_mandatory INTEGER NOT NULL DEFAULT 0,
    gpu_ids TEXT NOT NULL DEFAULT '[]',
    memory_mb INTEGER,
    max_wallclock_minutes REAL,
    silence_s REAL,
    attempt INTEGER NOT NULL DEFAULT 1,
    retries INTEGER NOT NULL DEFAULT 0,
    size_bytes INTEGER NOT NULL DEFAULT 0,
    protocol_version INTEGER NOT NULL DEFAULT 0,
    capabilities TEXT NOT NULL DEFAULT '{}',
    extras TEXT NOT NULL DEFAULT '{}',
    event_seq INTEGER NOT NULL DEFAULT 0,
    pid INTEGER NOT NULL DEFAULT 0,
    start_ticks INTEGER NOT NULL DEFAULT 0,
    boot_id TEXT NOT NULL DEFAULT '',
    mark TEXT NOT NULL DEFAULT '',
    run_token_sha256 TEXT NOT NULL DEFAULT '',
    session_token_sha256 TEXT NOT NULL DEFAULT '',
    worker_instance TEXT NOT NULL DEFAULT '',
    lifecycle_seq INTEGER NOT NULL DEFAULT 0,
    cancel_requested INTEGER NOT NULL DEFAULT 0,
    pause_requested TEXT NOT NULL DEFAULT '',
    paused_by_signal INTEGER NOT NULL DEFAULT 0,
    released INTEGER NOT NULL DEFAULT 0,
    stalled INTEGER NOT NULL DEFAULT 0,
    no_progress INTEGER NOT NULL DEFAULT 0,
    fault_reason TEXT NOT NULL DEFAULT '',
    claimed INTEGER NOT NULL DEFAULT 0,
    CHECK ((status = 'TERM') = (outcome IS NOT NULL))
) STRICT
"""

_VERSION_1: Migration = (
    f"PRAGMA application_id = {APPLICATION_ID}",
    _RUNS,
    # Few of many runs are unfinished: partial indexes stay small however long the history grows.
    "CREATE INDEX runs_unfinished ON runs (number) WHERE status <> 'TERM'",
    "CREATE INDEX runs_queued ON runs (status, priority DESC, number) WHERE status = 'INIT'",
    "CREATE INDEX runs_by_status ON runs (status)",
    "CREATE INDEX runs_by_outcome ON runs (outcome)",
    "CREATE INDEX runs_by_archived ON runs (archived)",
    # The rule behind "exactly one terminal record", kept even by someone with a SQL prompt.
    """
    CREATE TRIGGER runs_term_is_final BEFORE UPDATE OF status ON runs WHEN old.status = 'TERM'
    BEGIN SELECT RAISE(ABORT, 'a finished run does not change its status'); END
    """,
    # runs.tags keeps their order; run_tags is its index, kept true by the triggers.
    """
    CREATE TABLE run_tags (
        tag TEXT NOT NULL,
        number INTEGER NOT NULL REFERENCES runs (number) ON DELETE CASCADE,
        PRIMARY KEY (tag, number)
    ) STRICT, WITHOUT ROWID
    """,
    "CREATE INDEX run_tags_by_run ON run_tags (number)",
    """
    CREATE TRIGGER runs_tagged_at_birth AFTER INSERT ON runs WHEN new.tags <> '[]'
    BEGIN INSERT OR IGNORE INTO run_tags (tag, number) SELECT value, new.number FROM json_each(new.tags); END
    """,
    """
    CREATE TRIGGER runs_retagged AFTER UPDATE OF tags ON runs WHEN new.tags <> old.tags
    BEGIN
        DELETE FROM run_tags WHERE number = new.number;
        INSERT OR IGNORE INTO run_tags (tag, number) SELECT value, new.number FROM json_each(new.tags);
    END
    """,
    """
    CREATE TABLE events (
        seq INTEGER PRIMARY KEY AUTOINCREMENT,
        run_id TEXT NOT NULL REFERENCES runs (run_id) ON DELETE CASCADE,
        timestamp REAL NOT NULL,
        kind TEXT NOT NULL,
        from_status TEXT NOT NULL,
        to_status TEXT NOT NULL,
        reason TEXT NOT NULL,
        payload TEXT NOT NULL,
        attempt INTEGER NOT NULL
    ) STRICT
    """,
    "CREATE INDEX events_by_run ON events (run_id, seq)",
    """
    CREATE TABLE submissions (
        key_sha256 TEXT PRIMARY KEY,
        run_id TEXT NOT NULL REFERENCES runs (run_id) ON DELETE CASCADE
    ) STRICT, WITHOUT ROWID
    """,
    "CREATE INDEX submissions_by_run ON submissions (run_id)",
    "CREATE TABLE filters (name TEXT PRIMARY KEY, query TEXT NOT NULL) STRICT, WITHOUT ROWID",
)

_VERSION_2: Migration = ("ALTER TABLE runs ADD COLUMN metrics TEXT NOT NULL DEFAULT '{}'",)

_VERSION_3: Migration = (
    "ALTER TABLE runs ADD COLUMN submitted_by TEXT NOT NULL DEFAULT ''",
    "ALTER TABLE runs ADD COLUMN cancel_reason TEXT NOT NULL DEFAULT ''",
)

# What was submitted with a key; empty: by an older MOSAIC, which did not keep it.
_VERSION_4: Migration = ("ALTER TABLE submissions ADD COLUMN fingerprint TEXT NOT NULL DEFAULT ''",)

_VERSION_5: Migration = ("ALTER TABLE runs ADD COLUMN pid_namespace TEXT NOT NULL DEFAULT ''",)

MIGRATIONS: tuple[Migration, ...] = (_VERSION_1, _VERSION_2, _VERSION_3, _VERSION_4, _VERSION_5)
