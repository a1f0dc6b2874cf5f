"""The shape of our own code: which way dependencies point, what stays pure, and that every module has its test."""

from __future__ import annotations

import ast
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
SOURCE = ROOT / "src" / "kappamq"
TESTS = ROOT / "tests"

COMMON = {"message", "errors", "clock", "config", "events"}
# folder -> folders it may import besides itself and COMMON. Folders not named here stand on top and may import all.
MAY_IMPORT = {
    "native": "",
    "raft": "",
    "filters": "",
    "protocol": "native",
    "store": "protocol native",
    "net": "protocol",
    "state": "store protocol native filters",
    "replication": "raft store protocol",
    "nameserver": "net protocol",
    "client": "net protocol filters native",
    "broker": "raft replication state store net protocol native filters",
    "spark": "client store protocol filters native",
    # The common modules know nobody; response codes are numbers the error tree is built on.
    "message": "",
    "clock": "",
    "events": "",
    "errors": "protocol",
    "config": "",
}
# These are handed the time and the dice, so that a test or the simulator can hold them.
PURE = {"native", "raft", "filters", "protocol", "store", "replication"}
IMPURE_MODULES = set("asyncio socket time random threading secrets uuid ssl selectors concurrent".split())
# path -> what it may import in spite of that, with the reason
EXCEPTIONS: dict[str, set[str]] = {
    "native/flusher.py": {"threading"},  # the one thread that is part of the design: group commit
    "protocol/later.py": {"threading"},  # a lock, so that two threads can be the first to use a class
}
# These reach a disk through store/files.py only, so that a simulated one can stand behind them.
ON_FILES = {"store", "state", "broker", "native"}
DISK_MODULES = set(
    "shutil mmap fcntl tempfile glob io ctypes sqlite3 dbm shelve fileinput zipfile tarfile gzip bz2 lzma".split()
)
OS_WITHOUT_DISK = set("environ getpid kill strerror sysconf".split())
PATH_CALLS = set(
    "absolute chmod cwd expanduser glob hardlink_to home is_dir is_fifo is_file is_mount is_socket is_symlink iterdir lchmod "
    "lstat mkdir read_bytes read_text readlink resolve rglob rmdir samefile stat symlink_to touch unlink write_bytes "
    "write_text".split()
)
# Of a path; others have methods of these names, too.
PATH_OR_OTHER_CALLS = set("exists group open owner rename replace walk".split())
PATH_NAMES = ("path", "folder", "root", "directory", "place", "aside")
MADE_BY_FILES = {"map_file", "MappedFile", "Flusher"}
# module -> what it does in spite of that, and why
DISK_EXCEPTIONS: dict[str, dict[str, str]] = {
    "native/flusher.py": dict.fromkeys(
        "os.EFD_CLOEXEC os.EFD_NONBLOCK os.close os.eventfd os.fdatasync os.fsync os.pipe os.read os.set_blocking os.write".split(),
        "the twin of flusher.c: what Files.flusher gives out for a real disk",
    ),
    "native/pure_record.py": {"mmap": "the name of a type"},
    "native/mapping.py": {"mmap": "the twin of mapping.c: what Files.map gives out for a real disk"},
    "native/__init__.py": {"MappedFile()": "chooses between the compiled map and its twin, for Files.map"},
    "broker/machine.py": {".read_text()": "the boot id, in /proc"},
    "broker/upkeep/clock_watch.py": {"os.readlink": "the time namespace, in /proc"},
    "broker/naming/address.py": {"fcntl": "asks the network interfaces for their addresses"},
}
# Collaborators are constructor arguments, and what many listen to is an event (kappamq/events.py): nobody fills in an attribute of
# another object. These are no parts but values, which are made, filled and handed on; in the code they bear these names. What an object
# keeps (`self._report`) and what may be a part elsewhere (`broker`, `connection`, `table`) is not among them, but an exception below.
VALUES = set(
    (
        "account address answer beat block changed cut draft entry error first found frame half lease offset part "
        "passed position queue record renewed report request reset result staged topic wanted"
    ).split()
)
# module -> what it sets of others in spite of that, and why
SET_FROM_OUTSIDE: dict[str, dict[str, str]] = {
    "broker/machine.py": dict.fromkeys(
        "kernel.delays_ms self._kernel.store_host self._kernel.transfer_bytes_max self._kernel.transfer_count_max".split(),
        "settings of the kernel",
    ),
    "broker/clients/lock_requests.py": {"self._locks.safe_up_to": "a number that only the waiter for the log knows"},
    "broker/pulling/read_ahead.py": {"self._blocks[number].is_known": "a value of its own"},
    "broker/pulling/sql_pull.py": dict.fromkeys(("kernel.get_bytes", "kernel.get_count"), "counters of the kernel"),
    "broker/copies/mending/mender.py": dict.fromkeys(
        ("self._counts.found", "self._counts.repaired"), "counters that several add to"
    ),
    "broker/sending/gate.py": dict.fromkeys(
        ("kernel.accepting", "self._kernel.accepting"), "the gate owns this switch"
    ),
    "broker/upkeep/clock_watch.py": {"self._store.clock_steps": "the watch tells the store"},
    "broker/upkeep/damage.py": dict.fromkeys(
        "self._counts.found self._counts.repaired self._counts.unreadable_bytes".split(), "counters that several add to"
    ),
    "broker/upkeep/scrub.py": dict.fromkeys(
        ("self._counts.found", "self._counts.repaired"), "counters that several add to"
    ),
    "nameserver/liveness.py": {"self._live[key].heard": "a value of its own"},
    "store/log/commit_log.py": dict.fromkeys(
        ("self._kernel.log_min", "self._kernel.mins_raised"), "settings of the kernel"
    ),
    "store/log/log_ranges.py": dict.fromkeys(
        ("kernel.delays_ms", "kernel.index_enabled"), "settings of its own kernel"
    ),
    "store/message_store.py": dict.fromkeys(
        (
            "self.kernel.accepting self.kernel.hot_from self.kernel.index_enabled self.kernel.log_min self.kernel.mins_raised"
        ).split(),
        "settings of the kernel",
    ),
    "store/queue_bounds.py": dict.fromkeys(
        "self.kernel.hot_from self.kernel.mins_raised self.kernel.suggested self.kernel.suggested_below".split(),
        "settings of the kernel",
    ),
    "broker/admin/groups.py": {"group.attributes": "the group as the request gives it, before it is entered"},
    "broker/clients/registry.py": dict.fromkeys(
        "client.pushed client.topics group.consume_type group.from_where group.left group.message_model".split(),
        "a client and a group are values of its own",
    ),
    "broker/delivery/delay_levels.py": {"level.due": "a level is a value of its own"},
    "broker/naming/registration.py": dict.fromkeys(
        (
            "server.all_due server.complained server.known_change server.late server.missed server.registered "
            "server.role server.takes_beats server.task server.tried"
        ).split(),
        "what it knows of a name server, a value of its own",
    ),
    "nameserver/registering.py": dict.fromkeys(
        "line.lost line.waiting".split(),
        "a line is a value of its own",
    ),
    "nameserver/repeated_warnings.py": {"told.left_out": "a value of its own"},
    "nameserver/routes.py": dict.fromkeys(
        "group.acting_master group.addresses group.cluster group.zone live.heard".split(),
        "rows of its own table",
    ),
    "nameserver/service.py": dict.fromkeys(
        "broker.addresses members.addresses route.filter_servers route.order_conf".split(),
        "values of the answer, which was copied for it",
    ),
    "net/requests/beside.py": {"line.place": "a line is a value of its own"},
    "net/requests/fair_turns.py": dict.fromkeys(
        "line.holds_reading line.is_queued line.woken".split(),
        "a line is a value of its own",
    ),
    "net/serving/server.py": dict.fromkeys(
        "connection.counted_as connection.slow_since connection.unsent_seen connection.write_stalled_since".split(),
        "what the server finds out about a connection: whom it counts for, since when it is slow",
    ),
    "net/tls.py": dict.fromkeys(
        "context.check_hostname context.minimum_version context.verify_mode".split(),
        "settings of Python's own TLS context, which has no other way",
    ),
    "raft/leadership.py": dict.fromkeys(
        "peer.heard peer.reading".split(),
        "what the leader knows of a peer, a value of its own",
    ),
    "state/groups.py": {"group.name": "of a snapshot that was just read, before it is entered"},
    "state/metadata.py": {"table.dirty": "whether a table has to be written: Metadata alone knows when it was"},
    "state/scopes.py": {"scope.open": "a value of its own"},
    "store/derived.py": dict.fromkeys(
        "self._checkpoint.index_ms self._checkpoint.logics_ms self._checkpoint.physic_ms self._sweep.first".split(),
        "values of its own, which it alone fills",
    ),
    "store/index/growing.py": dict.fromkeys(
        "header.begin_ms header.begin_offset header.count header.end_ms header.end_offset header.used_slots".split(),
        "the header of an index file, a value of its own",
    ),
    "store/index/index_file.py": dict.fromkeys(
        "header.count header.used_slots".split(),
        "the header that was read, before anybody has it",
    ),
    "store/index/view.py": {"header.count": "the header that was read, before anybody has it"},
    "store/queues/queues.py": {"self._writing.made": "what is being written, a value of its own"},
    "store/reader.py": dict.fromkeys(
        "header.count header.end_ms".split(),
        "the header that was read, before anybody has it",
    ),
    "store/verify/index.py": dict.fromkeys(
        (
            "file.begin_ms file.counted file.next self._report.index_entries self._report.index_files "
            "self._report.unindexed"
        ).split(),
        "a report, and what is known of a file",
    ),
    "store/verify/queues.py": dict.fromkeys(
        "self._report.forgotten self._report.undispatched".split(),
        "a report",
    ),
    "store/verify/scrub.py": dict.fromkeys(
        "self.position.log_offset self.report.log_end self.report.log_min".split(),
        "the report and the position of this pass",
    ),
}
# module -> attributes that come after the constructor, and why
MADE_IN_TWO_STEPS: dict[str, dict[str, str]] = {
    "client/core/core.py": {"ClientCore.loop": "known when it is started, and used by nobody before"},
    "spark/jobs/audit_run.py": dict.fromkeys(
        (
            "Run._table Run._log_min Run._begins Run._deleted Run._trace Run._by_queue Run._offsets Run._offset_rows Run._queue_topics "
            "Run._all_topics Run._users Run._read_by_consumers Run._queued"
        ).split(),
        "one run whose steps build on each other",
    ),
}
# These read the bytes of records through protocol/records/view.py only.
READS_RECORDS = {"store", "broker", "client", "cli", "spark", "state"}
RECORD_LAYOUT = set("HEAD MAGIC_V1 MAGIC_V2 PREFIX".split())
# path -> where bytes are taken apart by hand in spite of that -> what they are
BYTES_BY_HAND: dict[str, dict[str, str]] = {
    "broker/naming/address.py": {"struct": "the operating system's list of interfaces"},
    "broker/pulling/lending.py": {"int.from_bytes()": "the size in a queue entry"},
    "broker/requests/bursts.py": {"int.from_bytes()": "the length of a frame"},
    "broker/sending/log_writer.py": {"int.from_bytes()": "the length of a frame"},
    "broker/timers/upcoming.py": {"struct": "timers, packed in memory"},
    "client/group/balance.py": {"int.from_bytes()": "a number made of a hash"},
    "spark/columns/batches.py": {
        "BORN_HOST_AT": "columns of addresses, from the places that `locate` has noted",
        "int.from_bytes()": "the port in an address",
    },
    "spark/columns/numpy_places.py": dict.fromkeys(
        ("MAGIC_V1", "MAGIC_V2", "struct"), "the kernel's pass, with numpy where executors have no kernel"
    ),
    "store/checkpoint.py": dict.fromkeys(("int.from_bytes()", "struct"), "the checkpoint"),
    "store/files.py": {"struct": "fcntl's lock"},
    "store/index/growing.py": {"int.from_bytes()": "a slot of the index"},
    "store/index/repair.py": {"int.from_bytes()": "a field of the index"},
    "store/index/view.py": {"int.from_bytes()": "a slot of the index"},
    "store/log/commit_log.py": {"struct": "the end mark of a file is written"},
    "store/log/log_ranges.py": {"int.from_bytes()": "the head of a file with parts of a rebuild"},
    "store/queues/deleted_topics.py": {"BODY_AT": "where a record begins whose body was found by its bytes"},
    "store/timer/entries.py": {"struct": "the files of the timer wheel"},
}
LINES_MAX = 500
MODULES_MAX = 15


@dataclass(frozen=True)
class Module:
    path: Path

    @property
    def name(self) -> str:
        return self.path.relative_to(SOURCE).as_posix()

    @property
    def folder(self) -> str:
        """The package below kappamq it is in; for a module directly in kappamq, its own name."""
        return self.path.relative_to(SOURCE).parts[0].removesuffix(".py")

    @cached_property
    def text(self) -> str:
        return self.path.read_text(encoding="utf-8")

    @cached_property
    def tree(self) -> ast.Module:
        return ast.parse(self.text, str(self.path))

    @cached_property
    def imported(self) -> set[str]:
        """Every module named in an import anywhere in the file, dotted, relative ones made absolute."""
        package = ["kappamq", *self.path.relative_to(SOURCE).parts[:-1]]
        found: set[str] = set()
        for node in ast.walk(self.tree):
            if isinstance(node, ast.Import):
                found |= {alias.name for alias in node.names}
            elif isinstance(node, ast.ImportFrom):
                base = package[: len(package) - node.level + 1] if node.level else []
                module = ".".join([*base, *([node.module] if node.module else [])])
                found |= {f"{module}.{alias.name}" for alias in node.names} if module == "kappamq" else {module}
        return found

    @property
    def our_imports(self) -> set[str]:
        return {name.split(".")[1] for name in self.imported if name.startswith("kappamq.")}

    @property
    def foreign_imports(self) -> set[str]:
        return {name.split(".")[0] for name in self.imported}

    @property
    def has_code(self) -> bool:
        """Whether there is anything to test: an __init__ that only gathers names has nothing."""
        if self.path.name == "__main__.py":
            return False
        if self.path.name != "__init__.py":
            return True
        return any(isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)) for node in self.tree.body)

    @property
    def test_file(self) -> Path:
        relative = self.path.relative_to(SOURCE)
        stem = relative.parent.name if relative.name == "__init__.py" else relative.stem
        if relative == Path("__init__.py"):
            stem = "init"
        return TESTS / relative.parent / f"test_{stem}.py"


MODULES = [Module(path) for path in sorted(SOURCE.rglob("*.py"))]
# Helpers may sleep while they poll (tests/waiting.py); a test itself must wait for something.
TEST_FILES = sorted(TESTS.rglob("test_*.py"))


@pytest.mark.parametrize("module", MODULES, ids=lambda module: module.name)
def test_module_is_tidy(module: Module) -> None:
    assert module.text.strip() == "" or ast.get_docstring(module.tree), f"{module.name} does not say what it is for"
    allowed = MAY_IMPORT.get(module.folder)
    if allowed is not None:
        wrong = module.our_imports - {module.folder, *COMMON, *allowed.split()}
        assert not wrong, f"{module.name} imports {wrong}: dependencies point the other way"
    if module.folder in PURE:
        wrong = module.foreign_imports & IMPURE_MODULES - EXCEPTIONS.get(module.name, set())
        assert not wrong, f"{module.name} is pure and must be handed what it imports from {wrong}"
    lines = module.text.count("\n")
    assert lines <= LINES_MAX, f"{module.name} has {lines} lines; split it by idea (at most {LINES_MAX})"
    if module.has_code:
        assert module.test_file.exists(), f"{module.name} has no test: write {module.test_file.relative_to(ROOT)}"


@pytest.mark.parametrize("room", sorted({module.path.parent for module in MODULES}), ids=lambda path: path.name)
def test_rooms_are_small_and_say_what_they_are_for(room: Path) -> None:
    modules = [path for path in room.glob("*.py") if path.name not in ("__init__.py", "__main__.py")]
    name = room.relative_to(SOURCE).as_posix()
    assert len(modules) <= MODULES_MAX, f"{name} has {len(modules)} modules; divide it by idea (at most {MODULES_MAX})"
    init = room / "__init__.py"
    assert init.exists(), f"{name} has no __init__.py that says what it is for"
    assert ast.get_docstring(ast.parse(init.read_text())), f"{name} does not say what it is for"


def disk_calls(tree: ast.Module) -> set[str]:
    """What of a module goes to a disk (or could), as DISK_EXCEPTIONS names it."""
    found: set[str] = set()
    for node in ast.walk(tree):
        match node:
            case ast.Import(names=names):
                found |= {name.name for name in names if name.name.split(".")[0] in DISK_MODULES}
                found |= {f"{name.name} as {name.asname}" for name in names if name.name == "os" and name.asname}
            case ast.ImportFrom(module=str(module), names=names) if module.split(".")[0] in DISK_MODULES:
                found.add(module)
            case ast.ImportFrom(module="os" | "os.path" | "posix" as module, names=names):
                found |= {f"{module}.{name.name}" for name in names if name.name not in OS_WITHOUT_DISK}
            case ast.Attribute(value=ast.Name(id="os"), attr=name) if name not in OS_WITHOUT_DISK:
                found.add(f"os.{name}")
            case ast.Call(func=ast.Name(id="getattr"), args=[ast.Name(id="os"), name, *_]):
                found.add(f"os.{ast.literal_eval(name) if isinstance(name, ast.Constant) else '?'}")
            case ast.Call(func=ast.Name(id="open")):
                found.add("open()")
            case ast.Call(func=ast.Name(id=name) | ast.Attribute(attr=name)) if name in MADE_BY_FILES:
                found.add(f"{name}()")
            case ast.Call(func=ast.Attribute(value=value, attr=name)) if ast.unparse(value) not in ("os", "os.path"):
                if name in PATH_CALLS or (name in PATH_OR_OTHER_CALLS and is_path(value)):
                    found.add(f".{name}()")
    return found


def is_path(value: ast.expr) -> bool:
    """Whether this looks like a path: `root / name`, `Path(...)`, or a name that says so."""
    match value:
        case ast.BinOp(op=ast.Div()):
            return True
        case ast.Call(func=ast.Name(id=name) | ast.Attribute(attr=name)):
            return name in ("Path", "with_name", "with_suffix")
        case ast.Name(id=name) | ast.Attribute(attr=name):
            return name.endswith(PATH_NAMES)
    return False


@pytest.mark.parametrize(
    "module",
    [module for module in MODULES if module.folder in ON_FILES and module.name != "store/files.py"],
    ids=lambda module: module.name,
)
def test_only_files_touch_the_disk(module: Module) -> None:
    found, excepted = disk_calls(module.tree), set(DISK_EXCEPTIONS.get(module.name, ()))
    assert not found - excepted, f"{module.name} goes around store/files.py: {sorted(found - excepted)}"
    assert not excepted - found, f"{module.name} no longer needs its exception: {sorted(excepted - found)}"


@pytest.mark.parametrize(
    ("line", "found"),
    [
        ("import os.path", set()),
        ("import os as system", {"os as system"}),
        ("import shutil", {"shutil"}),
        ("from mmap import PAGESIZE", {"mmap"}),
        ("from os import getpid, stat", {"os.stat"}),
        ("from os.path import exists", {"os.path.exists"}),
        ("os.getpid(), os.strerror(5), os.environ", set()),
        ("read = os.pread", {"os.pread"}),
        ("getattr(os, 'fsync'), getattr(os, name)", {"os.fsync", "os.?"}),
        ("os.path.exists(name)", {"os.path"}),
        ("with open(name) as file: pass", {"open()"}),
        ("self.files.open(path), files.exists(path), files.rename(path, other)", set()),
        ("(root / name).exists()", {".exists()"}),
        ("self._path.open('rb')", {".open()"}),
        ("Path(name).rename(other)", {".rename()"}),
        ("aside.replace(other)", {".replace()"}),
        ("text.replace('a', 'b'), self._abort.exists(), timers.open()", set()),
        ("self.folder.iterdir()", {".iterdir()"}),
        ("anything.read_bytes()", {".read_bytes()"}),
        ("self.kernel_module.Flusher()", {"Flusher()"}),
        ("native.map_file(fd, 5)", {"map_file()"}),
        ("files.flusher(kernel), files.map(fd, 5)", set()),
    ],
)
def test_what_goes_to_the_disk_is_seen(line: str, found: set[str]) -> None:
    assert disk_calls(ast.parse(line)) == found


def bytes_by_hand(tree: ast.Module) -> set[str]:
    """How a module takes bytes apart, and what it knows of the layout of records."""
    found: set[str] = set()
    for node in ast.walk(tree):
        match node:
            case ast.Import(names=names):
                found |= {name.name for name in names if name.name == "struct"}
            case ast.ImportFrom(module="struct"):
                found.add("struct")
            case ast.ImportFrom(module=str(module), names=names) if module.startswith(
                ("kappamq.native", "kappamq.protocol.records")
            ):
                found |= {name.name for name in names if is_layout(name.name)}
            case ast.Attribute(value=ast.Name(id="records" | "record" | "fields" | "layout"), attr=name):
                found |= {name} if is_layout(name) else set()
            case ast.Attribute(value=ast.Name(id="int"), attr="from_bytes"):
                found.add("int.from_bytes()")
    return found


def is_layout(name: str) -> bool:
    return name in RECORD_LAYOUT or name.endswith("_AT")


@pytest.mark.parametrize(
    "module", [module for module in MODULES if module.folder in READS_RECORDS], ids=lambda module: module.name
)
def test_records_are_read_through_views(module: Module) -> None:
    found, excepted = bytes_by_hand(module.tree), set(BYTES_BY_HAND.get(module.name, ()))
    assert not found - excepted, (
        f"{module.name} takes bytes apart ({sorted(found - excepted)}): read records with protocol/records/view.py"
    )
    assert not excepted - found, f"{module.name} no longer needs its exception: {sorted(excepted - found)}"


@pytest.mark.parametrize(
    ("line", "found"),
    [
        ("import struct", {"struct"}),
        ("from struct import Struct", {"struct"}),
        ("size = int.from_bytes(data[:4], 'big')", {"int.from_bytes()"}),
        ("from kappamq.protocol.records.record import LOG_OFFSET_AT, Record", {"LOG_OFFSET_AT"}),
        ("from kappamq.native.layout import ENTRY, HEAD, MAGIC_V1", {"HEAD", "MAGIC_V1"}),
        ("records.PREFIX.unpack_from(data)", {"PREFIX"}),
        ("from kappamq.store.timer.entries import WAIT_AT", set()),
        ("from kappamq.protocol.records.view import Front, view_at", set()),
        ("view_at(data).stored_ms", set()),
    ],
)
def test_what_is_taken_apart_by_hand_is_seen(line: str, found: set[str]) -> None:
    assert bytes_by_hand(ast.parse(line)) == found


def set_from_outside(tree: ast.Module) -> set[str]:
    """Attributes of other objects that a module assigns."""
    found: set[str] = set()
    for node in ast.walk(tree):
        targets: list[ast.expr] = []
        if isinstance(node, ast.Assign):
            targets = node.targets
        elif isinstance(node, (ast.AugAssign, ast.AnnAssign)):
            targets = [node.target]
        for target in targets:
            for one in target.elts if isinstance(target, (ast.Tuple, ast.List)) else [target]:
                if isinstance(one, ast.Attribute):
                    owner = ast.unparse(one.value)
                    if owner not in {"self", "cls", *VALUES}:
                        found.add(ast.unparse(one))
        match node:
            case ast.Call(func=ast.Name(id="setattr")):
                found.add("setattr()")
            case ast.Call(func=ast.Name(id="hasattr"), args=[ast.Name(id="self"), *_]):
                found.add("hasattr(self)")
    return found


@pytest.mark.parametrize(
    "module",
    [
        module
        for module in MODULES
        if module.folder in ("broker", "state", "store", "net", "nameserver", "raft", "replication")
    ],
    ids=lambda module: module.name,
)
def test_nobody_fills_in_attributes_of_others(module: Module) -> None:
    found, excepted = set_from_outside(module.tree), set(SET_FROM_OUTSIDE.get(module.name, ()))
    assert not found - excepted, (
        f"{module.name} sets {sorted(found - excepted)} from outside: make it an argument, or an event"
    )
    assert not excepted - found, f"{module.name} no longer needs its exception: {sorted(excepted - found)}"


@pytest.mark.parametrize(
    ("line", "found"),
    [
        ("self.x = 5; cls.y = 6; x = 7", set()),
        ("pulls.worker = read", {"pulls.worker"}),
        ("self.pulls.worker = read", {"self.pulls.worker"}),
        ("self.a.b, self.c = 1, 2", {"self.a.b"}),
        ("upkeep.on_tick += [look]", {"upkeep.on_tick"}),
        ("sends.told: Told = told", {"sends.told"}),
        ("draft.topic = name", set()),
        ("report.records = 5", set()),
        ("self._report.records = 5", {"self._report.records"}),
        ("self._draft.topic = name", {"self._draft.topic"}),
        ("self._broker.role = x", {"self._broker.role"}),
        ("broker.role = x", {"broker.role"}),
        ("self._connection.on_lost = x", {"self._connection.on_lost"}),
        ("connection.on_lost = x", {"connection.on_lost"}),
        ("self.client.a = 1; members.b = 2; server.c += 3", {"self.client.a", "members.b", "server.c"}),
        ("self._route.a, header.b = 1, 2", {"self._route.a", "header.b"}),
        ("peers.a: int = 1; context.b = 2; self.peer.c = 3", {"peers.a", "context.b", "self.peer.c"}),
        ("self._store.draft.topic = name", {"self._store.draft.topic"}),
        ("setattr(pulls, name, 5)", {"setattr()"}),
        ("hasattr(self, 'server')", {"hasattr(self)"}),
        ("hasattr(transport, 'writelines')", set()),
    ],
)
def test_what_is_filled_in_from_outside_is_seen(line: str, found: set[str]) -> None:
    assert set_from_outside(ast.parse(line)) == found


FORMATTED = {
    "broker",
    "state",
    "store",
    "net",
    "nameserver",
    "config",
    "cli",
    "processes",
    "testing",
    "raft",
    "replication",
    "filters",
}
"""Where the formatter breaks every argument list: what is too long for it wants a parameter object."""
NOT_YET_FORMATTED = ("broker/batches/", "broker/copies/", "broker/pulling/sql_pull.py")


@pytest.mark.parametrize(
    "module",
    [module for module in MODULES if module.folder in FORMATTED and not module.name.startswith(NOT_YET_FORMATTED)],
    ids=lambda module: module.name,
)
def test_no_argument_list_is_squeezed(module: Module) -> None:
    assert "# fmt:" not in module.text, f"{module.name} goes around the formatter: pass a parameter object"


def reached_through(tree: ast.Module) -> set[str]:
    """Where a module takes the kernel out of somebody else's store."""
    found: set[str] = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute) and node.attr == "kernel":
            owner = ast.unparse(node.value)
            if owner.removeprefix("self.").lstrip("_").endswith("store"):
                found.add(ast.unparse(node))
    return found


@pytest.mark.parametrize(
    "module", [module for module in MODULES if module.folder != "store"], ids=lambda module: module.name
)
def test_nobody_reaches_through_the_store(module: Module) -> None:
    found = reached_through(module.tree)
    assert not found, f"{module.name} uses {sorted(found)}: ask the store, or take the kernel as an argument"


def test_what_reaches_through_the_store_is_seen() -> None:
    tree = ast.parse(
        "self._store.kernel.take(); store.kernel; a.store.kernel; self.kernel; base.kernel; store.kernel_module"
    )
    assert reached_through(tree) == {"self._store.kernel", "store.kernel", "a.store.kernel"}


def own_targets(node: ast.AST) -> set[str]:
    """Attributes of itself that an object sets in a piece of code."""
    found: set[str] = set()
    for inner in ast.walk(node):
        targets: list[ast.expr] = []
        if isinstance(inner, ast.Assign):
            targets = inner.targets
        elif isinstance(inner, (ast.AnnAssign, ast.AugAssign)):
            targets = [inner.target]
        for target in targets:
            for one in target.elts if isinstance(target, (ast.Tuple, ast.List)) else [target]:
                if isinstance(one, ast.Attribute) and ast.unparse(one.value) == "self":
                    found.add(one.attr)
    return found


def made_with(kind: ast.ClassDef, kinds: dict[str, list[ast.ClassDef]], seen: frozenset[str] = frozenset()) -> set[str]:
    """The attributes that an object has once it is constructed: of its class, its `__init__`, what that calls, and of its bases. A
    context manager is constructed when it is entered."""
    methods = {node.name: node for node in kind.body if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef))}
    found = set(methods)  # also properties, whose setters are named as they are
    for node in kind.body:
        if isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name):
            found.add(node.target.id)
        elif isinstance(node, ast.Assign):
            found |= {target.id for target in node.targets if isinstance(target, ast.Name)}
    setters = [
        node for node in methods.values() if any(ast.unparse(one).endswith(".setter") for one in node.decorator_list)
    ]
    begins = [
        methods[name] for name in ("__init__", "__new__", "__post_init__", "__enter__", "__aenter__") if name in methods
    ]
    for begin in begins:
        called = {
            node.func.attr
            for node in ast.walk(begin)
            if isinstance(node, ast.Call)
            and isinstance(node.func, ast.Attribute)
            and ast.unparse(node.func.value) == "self"
        }
        for method in (begin, *setters, *(methods[name] for name in called & set(methods))):
            found |= own_targets(method)
    for base in kind.bases:
        name = ast.unparse(base).partition("[")[0].rpartition(".")[2]
        if name not in seen:
            for each in kinds.get(name, []):
                found |= made_with(each, kinds, seen | {name})
    return found


def classes_of(trees: list[ast.Module]) -> dict[str, list[ast.ClassDef]]:
    kinds: dict[str, list[ast.ClassDef]] = {}
    for tree in trees:
        for node in ast.walk(tree):
            if isinstance(node, ast.ClassDef):
                kinds.setdefault(node.name, []).append(node)
    return kinds


def made_in_two_steps(tree: ast.Module, kinds: dict[str, list[ast.ClassDef]]) -> set[str]:
    """Attributes that objects do not have before some method of theirs was called."""
    found: set[str] = set()
    for kind in (node for node in ast.walk(tree) if isinstance(node, ast.ClassDef)):
        late: set[str] = set()
        for node in kind.body:
            if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)) and node.name != "__init__":
                late |= own_targets(node)
        found |= {f"{kind.name}.{name}" for name in late - made_with(kind, kinds)}
    return found


def test_objects_are_whole_once_they_are_constructed() -> None:
    kinds = classes_of([module.tree for module in MODULES])
    found = {module.name: late for module in MODULES if (late := made_in_two_steps(module.tree, kinds))}
    wrong = {
        name: sorted(late - set(MADE_IN_TWO_STEPS.get(name, ())))
        for name, late in found.items()
        if late - set(MADE_IN_TWO_STEPS.get(name, ()))
    }
    assert not wrong, f"these attributes come after the constructor: {wrong}"
    gone = {name: sorted(set(late) - found.get(name, set())) for name, late in MADE_IN_TWO_STEPS.items()}
    assert not any(gone.values()), f"these exceptions are no longer needed: {gone}"


@pytest.mark.parametrize(
    ("body", "found"),
    [
        ("def __init__(self): self.a = 1\n    def go(self): self.a = 2", set()),
        ("def go(self): self.a = 1", {"C.a"}),
        ("async def go(self): self.a, self.b = 1, 2", {"C.a", "C.b"}),
        ("def __init__(self): self.again()\n    def again(self): self.a = 1", set()),
        ("def __init__(self): pass\n    def again(self): self.a = 1", {"C.a"}),
        ("a: int\n    def go(self): self.a = 1", set()),
        ("def go(self): self.of_base = 1", set()),
    ],
)
def test_what_is_made_in_two_steps_is_seen(body: str, found: set[str]) -> None:
    tree = ast.parse(f"class B:\n    def __init__(self): self.of_base = 0\nclass C(B):\n    {body}")
    assert made_in_two_steps(tree, classes_of([tree])) == found


def callbacks_filled_in(tree: ast.Module) -> set[str]:
    """Attributes of other objects that a module makes call something: a lambda, or a name that says so."""
    found: set[str] = set()
    for node in ast.walk(tree):
        for target in node.targets if isinstance(node, ast.Assign) else ():
            if not isinstance(target, ast.Attribute) or ast.unparse(target.value) in ("self", "cls"):
                continue
            if isinstance(node.value, ast.Lambda) or target.attr.startswith("on_"):
                found.add(ast.unparse(target))
    return found


@pytest.mark.parametrize("module", MODULES, ids=lambda module: module.name)
def test_nobody_fills_in_callbacks_of_others(module: Module) -> None:
    found = callbacks_filled_in(module.tree)
    assert not found, f"{module.name} fills in {sorted(found)} from outside: make it an argument, or an event"


def test_callbacks_that_are_filled_in_are_seen() -> None:
    tree = ast.parse("self.on_end = f; a.on_end = f; self.a.call = lambda: 5; a.count = 5; cls.f = lambda: 5")
    assert callbacks_filled_in(tree) == {"a.on_end", "self.a.call"}


def test_errors_import_only_the_codes_and_the_form_of_a_hint() -> None:
    errors = Module(SOURCE / "errors.py")
    ours = {name for name in errors.imported if name.startswith("kappamq.")}
    assert ours == {"kappamq.protocol.codes", "kappamq.protocol.leader_hint"}
    assert not Module(SOURCE / "protocol" / "leader_hint.py").our_imports


@pytest.mark.parametrize("path", TEST_FILES, ids=lambda path: path.relative_to(TESTS).as_posix())
def test_tests_do_not_sleep_for_luck(path: Path) -> None:
    """A pause is either too short on a busy machine or too long everywhere else: wait for what is meant.

    `sleep(0)` is no pause. A test about time itself says why it must, in a comment on that line.
    """
    text = path.read_text(encoding="utf-8")
    lines = text.splitlines()
    for node in ast.walk(ast.parse(text)):
        if not isinstance(node, ast.Call) or not isinstance(node.func, ast.Attribute) or node.func.attr != "sleep":
            continue
        zero = len(node.args) == 1 and isinstance(node.args[0], ast.Constant) and node.args[0].value == 0
        reason = any(" # " in line for line in lines[node.lineno - 1 : node.end_lineno])
        assert zero or reason, f"{path.name}:{node.lineno} sleeps for luck; use tests/waiting.py"


def test_show_the_longest() -> None:
    """A place to look, not a law: printed with `pytest -s`."""
    files = sorted(((module.text.count("\n"), module.name) for module in MODULES), reverse=True)
    functions = sorted(
        (
            (node.end_lineno - node.lineno + 1, f"{module.name}:{node.name}")
            for module in MODULES
            for node in ast.walk(module.tree)
            if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)) and node.end_lineno is not None
        ),
        reverse=True,
    )
    for title, rows in (("longest files", files), ("longest functions", functions)):
        print(f"\n{title}:", *(f"  {lines:5} {name}" for lines, name in rows[:8]), sep="\n")


def test_no_package_registry_is_named() -> None:
    # Spelled in parts so that this file does not name them either.
    hosts = [
        "pypi" + ".org",
        "repo1." + "maven",
        "repo.maven." + "apache",
        "files.python" + "hosted",
        "registry.npm" + "js",
    ]
    suffixes = {".py", ".md", ".toml", ".xml", ".cfg", ".txt", ".yml", ".json", ".sh", ".c", ".h", ".pyx", ".pxd"}
    for folder in ("src", "tests", "docs", "examples", "benchmarks", ".ci"):
        for path in (ROOT / folder).rglob("*"):
            if path.is_file() and (path.suffix in suffixes or folder == ".ci") and "target" not in path.parts:
                text = path.read_text(encoding="utf-8", errors="replace")
                assert not [host for host in hosts if host in text], f"{path} names a package registry"
