"""Power cuts: what may be left of a directory when the machine stops between two system calls.

A `RecordingDisk` writes down every system call of stores, journals, sinks and whatever else goes
through `Disk`. A `PowerCut` replays a prefix of them and produces states that POSIX allows
afterwards.

Invariants:
- Content that was not fsynced (nor covered by syncfs) may be empty, torn or garbage.
- A name that was made, replaced or removed without a later fsync of its directory (or syncfs) may
  be as it was before, or as it was at any moment since; each name on its own.
- A directory that was renamed is under its old name, its new one, or both, never under none: file
  systems write that in one step. Of a file that was renamed, both names may be gone.
- What was synced is there. A state never holds anything that was not written, but garbage.
"""

from __future__ import annotations

import os
import random
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from holdfast.errors import invariant
from holdfast.storage.local.disk import Disk

Sync = Literal["sync", "sync_data", "sync_dir", "sync_filesystem"]
Content = Literal["empty", "torn", "garbage"]


@dataclass(frozen=True, slots=True)
class Call:
    """One system call, or a mark that a test has set."""

    name: str
    path: str = ""
    target: str = ""
    inode: int = 0
    data: bytes = b""
    offset: int = 0

    def __str__(self) -> str:
        """For a person who reads which moment failed."""
        size = f" {len(self.data)} bytes" if self.data else ""
        target = f" -> {self.target}" if self.target else ""
        return f"{self.name} {self.path}{target}{size}".strip()


class RecordingDisk(Disk):
    """A real disk below `base` that writes down what it is asked to do.

    skip: these calls do nothing and are not written down, to see a test fail without them.
    real_sync: also really sync; off, since the record alone decides what survives.
    """

    def __init__(self, base: Path, *, skip: Collection[Sync] = (), real_sync: bool = False) -> None:
        """Begin with an empty record; `base` exists and is durable."""
        self._base = os.path.realpath(base)
        self._skip = frozenset(skip)
        self._real_sync = real_sync
        self._inodes: dict[int, int] = {}
        self._names: dict[str, int] = {}
        self._count = 0
        self.calls: list[Call] = []

    def mark(self, text: str) -> None:
        """Put a mark between two calls: what had returned by then."""
        self.calls.append(Call("mark", text))

    def _relative(self, path: str) -> str:
        """The path below the base, with no link on the way to its last part."""
        directory, leaf = os.path.split(os.path.abspath(path))
        real = os.path.join(os.path.realpath(directory), leaf)
        return os.path.relpath(real, self._base)

    def _moved(self, source: str, target: str) -> None:
        """A name, and all names below it, now begin with another one."""
        for name in [n for n in self._names if n == source or n.startswith(f"{source}/")]:
            self._names[target + name[len(source) :]] = self._names.pop(name)

    def _note(self, name: str, path: str, **more: Any) -> None:
        self.calls.append(Call(name, self._relative(path), **more))

    def open_new(self, path: str) -> int:
        """Create exclusively."""
        descriptor = super().open_new(path)
        self._count += 1
        self._inodes[descriptor] = self._count
        self._names[self._relative(path)] = self._count
        self._note("create", path, inode=self._count)
        return descriptor

    def open_read(self, path: str) -> int:
        """Open for reading."""
        descriptor = super().open_read(path)
        self._inodes[descriptor] = self._names.get(self._relative(path), 0)
        return descriptor

    def open_write(self, path: str) -> int:
        """Open what exists for writing in place."""
        descriptor = super().open_write(path)
        self._inodes[descriptor] = self._names[self._relative(path)]
        return descriptor

    def open_lock(self, path: str) -> int:
        """Open a small file for writing in place, and make it if it is not there."""
        missing = not os.path.lexists(path)
        descriptor = super().open_lock(path)
        if missing:
            self._count += 1
            self._names[self._relative(path)] = self._count
            self._note("create", path, inode=self._count)
        self._inodes[descriptor] = self._names[self._relative(path)]
        return descriptor

    def write(self, descriptor: int, data: bytes | bytearray | memoryview) -> None:
        """Write all of it."""
        super().write(descriptor, data)
        self.calls.append(Call("write", inode=self._inodes[descriptor], data=bytes(data)))

    def write_at(
        self, descriptor: int, parts: Sequence[bytes | bytearray | memoryview], offset: int
    ) -> int:
        """Write parts one after another at an offset."""
        wrote = super().write_at(descriptor, parts, offset)
        data = b"".join(parts)[:wrote]
        inode = self._inodes[descriptor]
        self.calls.append(Call("write_at", inode=inode, data=data, offset=offset))
        return wrote

    def truncate(self, descriptor: int, size: int) -> None:
        """Shorten a file."""
        super().truncate(descriptor, size)
        self.calls.append(Call("truncate", inode=self._inodes[descriptor], offset=size))

    def copy(self, source: str, target: str) -> None:
        """Copy a file."""
        super().copy(source, target)
        self._count += 1
        self._names[self._relative(target)] = self._count
        self._note("create", target, inode=self._count)
        self.calls.append(Call("write", inode=self._count, data=Path(target).read_bytes()))

    def sync(self, descriptor: int) -> None:
        """Make a file's content durable."""
        if "sync" in self._skip:
            return
        if self._real_sync:
            super().sync(descriptor)
        self.calls.append(Call("sync", inode=self._inodes[descriptor]))

    def sync_data(self, descriptor: int) -> None:
        """Make a file's bytes durable."""
        if "sync_data" in self._skip:
            return
        if self._real_sync:
            super().sync_data(descriptor)
        self.calls.append(Call("sync", inode=self._inodes[descriptor]))

    def close(self, descriptor: int) -> None:
        """Close a descriptor."""
        self._inodes.pop(descriptor, None)
        super().close(descriptor)

    def sync_dir(self, path: str) -> None:
        """Make the names in a directory durable."""
        if "sync_dir" in self._skip:
            return
        if self._real_sync:
            super().sync_dir(path)
        self._note("sync_dir", os.path.realpath(path))

    def sync_filesystem(self, descriptor: int) -> None:
        """Make everything durable."""
        if "sync_filesystem" in self._skip:
            return
        if self._real_sync:
            super().sync_filesystem(descriptor)
        self.calls.append(Call("sync_filesystem"))

    def link_new(self, source: str, target: str) -> None:
        """Give a file a second name."""
        super().link_new(source, target)
        self._names[self._relative(target)] = self._names[self._relative(source)]
        self._note("link", source, target=self._relative(target))

    def rename_new(self, source: str, target: str) -> None:
        """Rename to a name that must not exist."""
        super().rename_new(source, target)
        self._moved(self._relative(source), self._relative(target))
        self._note("rename", source, target=self._relative(target))

    def rename(self, source: str, target: str) -> None:
        """Replace atomically."""
        super().rename(source, target)
        self._moved(self._relative(source), self._relative(target))
        self._note("rename", source, target=self._relative(target))

    def exchange(self, one: str, other: str) -> None:
        """Swap two names."""
        super().exchange(one, other)
        first, second = self._relative(one), self._relative(other)
        self._moved(first, f"{first}/exchanged")
        self._moved(second, first)
        self._moved(f"{first}/exchanged", second)
        self._note("exchange", one, target=second)

    def symlink(self, target: str, path: str) -> None:
        """Make a symbolic link."""
        super().symlink(target, path)
        self._note("symlink", path, target=target)

    def unlink(self, path: str) -> None:
        """Remove a name."""
        super().unlink(path)
        self._names.pop(self._relative(path), None)
        self._note("unlink", path)

    def make_dir(self, path: str) -> None:
        """Create one directory."""
        super().make_dir(path)
        self._note("make_dir", path)

    def remove_dir(self, path: str) -> None:
        """Remove an empty directory."""
        super().remove_dir(path)
        self._note("remove_dir", path)

    def remove_tree(self, path: str) -> None:
        """Remove a directory and all that is in it, name by name."""
        for base, directories, files in os.walk(path, topdown=False):
            for name in files:
                self.unlink(f"{base}/{name}")
            for name in directories:
                link = os.path.islink(f"{base}/{name}")
                (self.unlink if link else self.remove_dir)(f"{base}/{name}")
        if os.path.isdir(path):
            self.remove_dir(path)


@dataclass
class _File:
    durable: bytes = b""
    content: bytes = b""


@dataclass(frozen=True)
class _Link:
    target: str


@dataclass
class _SimulatedDirectory:
    durable: dict[str, _Node] = field(default_factory=dict)
    names: dict[str, _Node] = field(default_factory=dict)
    # Since the last sync: every node (or absence) that a name has stood for.
    since: dict[str, list[_Node | None]] = field(default_factory=dict)

    def put(self, name: str, node: _Node | None) -> None:
        self.since.setdefault(name, []).append(node)
        if node is None:
            self.names.pop(name, None)
        else:
            self.names[name] = node

    def sync(self) -> None:
        self.durable = dict(self.names)
        self.since = {}


_Node = _File | _Link | _SimulatedDirectory


class DiskState(dict[str, bytes]):
    """Files by path, as a power cut left them; directories and links on their own."""

    def __init__(self) -> None:
        """Begin empty."""
        super().__init__()
        self.directories: list[str] = []
        self.links: dict[str, str] = {}

    def write_to(self, target: Path) -> None:
        """Make a real directory of it."""
        target.mkdir(parents=True, exist_ok=True)
        for path in self.directories:
            (target / path).mkdir(parents=True, exist_ok=True)
        for path, content in self.items():
            (target / path).write_bytes(content)
        for path, link in self.links.items():
            (target / path).symlink_to(link)


class PowerCut:
    """The machine stops after these calls."""

    def __init__(self, calls: Collection[Call]) -> None:
        """Replay the calls."""
        self._root = _SimulatedDirectory()
        self._files: dict[int, _File] = {}
        self._renamed: list[tuple[_SimulatedDirectory, str, _SimulatedDirectory, str]] = []
        for call in calls:
            self._replay(call)

    def _replay(self, call: Call) -> None:  # noqa: C901, PLR0912 - one case for each system call
        match call.name:
            case "create":
                file = self._files[call.inode] = _File()
                self._parent(call.path).put(_leaf(call.path), file)
            case "write":
                self._files[call.inode].content += call.data
            case "write_at":
                file = self._files[call.inode]
                end = call.offset + len(call.data)
                before = file.content[: call.offset].ljust(call.offset, b"\0")
                file.content = before + call.data + file.content[end:]
            case "truncate":
                file = self._files[call.inode]
                file.content = file.content[: call.offset].ljust(call.offset, b"\0")
            case "sync":
                if call.inode:
                    file = self._files[call.inode]
                    file.durable = file.content
            case "sync_dir":
                self._directory(call.path).sync()
            case "sync_filesystem":
                _sync_all(self._root)
            case "link" | "rename":
                node = self._parent(call.path).names[_leaf(call.path)]
                self._parent(call.target).put(_leaf(call.target), node)
                if call.name == "rename":
                    self._parent(call.path).put(_leaf(call.path), None)
                    if isinstance(node, _SimulatedDirectory):
                        places = self._parent(call.path), self._parent(call.target)
                        self._renamed.append(
                            (places[0], _leaf(call.path), places[1], _leaf(call.target))
                        )
            case "exchange":
                one, other = self._parent(call.path), self._parent(call.target)
                first, second = one.names[_leaf(call.path)], other.names[_leaf(call.target)]
                one.put(_leaf(call.path), second)
                other.put(_leaf(call.target), first)
            case "symlink":
                self._parent(call.path).put(_leaf(call.path), _Link(call.target))
            case "make_dir":
                self._parent(call.path).put(_leaf(call.path), _SimulatedDirectory())
            case "unlink" | "remove_dir":
                self._parent(call.path).put(_leaf(call.path), None)
            case _:
                invariant(call.name == "mark", "unknown call", call=call.name)

    def _directory(self, path: str) -> _SimulatedDirectory:
        node = self._root
        for part in path.split("/"):
            if part != ".":
                found = node.names[part]
                invariant(isinstance(found, _SimulatedDirectory), "not a directory", path=path)
                node = found  # type: ignore[assignment]
        return node

    def _parent(self, path: str) -> _SimulatedDirectory:
        return self._directory(path.rpartition("/")[0] or ".")

    def worst(self) -> Iterator[tuple[str, DiskState]]:
        """The states at the edges: no unsynced name survives; all do, each content lost its way."""
        yield "unsynced names are lost", self._state(keep_names=False, content="empty")
        for content in ("empty", "torn", "garbage"):
            yield (
                f"unsynced names stay, unsynced content is {content}",
                self._state(keep_names=True, content=content),
            )

    def some(self, seed: int) -> DiskState:
        """A random legal state; each name and each content on its own."""
        return self._state(keep_names=None, content=None, chance=random.Random(seed))

    def _state(
        self,
        *,
        keep_names: bool | None,
        content: Content | None,
        chance: random.Random | None = None,
    ) -> DiskState:
        chance = chance or random.Random(0)
        state = DiskState()
        contents: dict[int, bytes] = {}  # two names of one file show the same bytes

        names = self._names_after_cut(chance, keep_names=keep_names)

        def walk(directory: _SimulatedDirectory, prefix: str) -> None:
            for name, node in names[id(directory)].items():
                if isinstance(node, _SimulatedDirectory):
                    state.directories.append(f"{prefix}{name}")
                    walk(node, f"{prefix}{name}/")
                    continue
                if isinstance(node, _Link):
                    state.links[f"{prefix}{name}"] = node.target
                    continue
                if id(node) not in contents:
                    how: str = content or chance.choice(_CUTS)
                    contents[id(node)] = _after_cut(node, how, chance)
                state[f"{prefix}{name}"] = contents[id(node)]

        walk(self._root, "")
        return state

    def _names_after_cut(
        self, chance: random.Random, *, keep_names: bool | None
    ) -> dict[int, dict[str, _Node]]:
        """By directory, its names after the cut; no renamed directory has lost both of its own."""
        names: dict[int, dict[str, _Node]] = {}
        todo: list[_Node] = [self._root]
        while todo:
            directory = todo.pop()
            if isinstance(directory, _SimulatedDirectory) and id(directory) not in names:
                names[id(directory)] = _chosen(directory, chance, keep_names=keep_names)
                todo += [*directory.durable.values(), *directory.names.values()]
                todo += [node for nodes in directory.since.values() for node in nodes if node]
        for source, old, target, new in self._renamed:
            node = target.names.get(new)
            lost = node is not None and names[id(target)].get(new) is not node
            if lost and source.durable.get(old) is node and node is not None:
                names[id(source)][old] = node
        return names


_CUTS: tuple[str, ...] = ("empty", "torn", "garbage", "whole")


def _chosen(
    directory: _SimulatedDirectory, chance: random.Random, *, keep_names: bool | None
) -> dict[str, _Node]:
    """The names of a directory after the cut."""
    if keep_names is not None:
        return directory.names if keep_names else directory.durable
    chosen = dict(directory.durable)
    for name, nodes in directory.since.items():
        node = chance.choice([directory.durable.get(name), *nodes])
        chosen.pop(name, None)
        if node is not None:
            chosen[name] = node
    return chosen


def _after_cut(file: _File, how: str, chance: random.Random) -> bytes:
    """What a file holds after the cut."""
    if file.content == file.durable or how == "whole":
        return file.content
    if how == "empty":
        return file.durable
    if not file.content.startswith(file.durable):  # written in place
        half = len(file.content) // 2
        kept, more = file.content[:half] + file.durable[half:], b""
    else:
        kept, more = file.durable, file.content[len(file.durable) :]
    if how == "torn":
        return kept + more[: len(more) // 2]
    return kept + bytes(byte ^ chance.randrange(1, 256) for byte in more)


def _sync_all(directory: _SimulatedDirectory) -> None:
    directory.sync()
    for node in directory.names.values():
        if isinstance(node, _SimulatedDirectory):
            _sync_all(node)
        elif isinstance(node, _File):
            node.durable = node.content


def _leaf(path: str) -> str:
    return path.rpartition("/")[2]
