"""The archive of Spark's classes: where it is, when it is used, and what can go wrong."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from holdfast.errors import IncompatibleError, InvalidInputError
from holdfast.java import Java
from holdfast.pipeline import classes


@pytest.fixture
def java(tmp_path, monkeypatch):
    """A Java that says its version and can do nothing else, and a cache of its own."""
    monkeypatch.setenv(classes.CACHE_VARIABLE, str(tmp_path / "cache"))
    program = tmp_path / "java" / "bin" / "java"
    program.parent.mkdir(parents=True)
    program.write_text('#!/bin/sh\necho "openjdk version \\"17.0.1\\"" >&2\nexit 3\n')
    program.chmod(0o755)
    (tmp_path / "java" / "release").write_text('JAVA_VERSION="17.0.1"')
    return Java(tmp_path / "java", 17)


def test_nothing_is_asked_of_the_jvm_unless_there_is_an_archive(java):
    """Without `prepare` the options are empty; with it they name the file."""
    assert classes.archive_options(java) == ""
    path = classes.archive_path(java)
    path.parent.mkdir()
    path.write_bytes(b"x")
    assert f"-XX:SharedArchiveFile={path}" in classes.archive_options(java).split()


def test_another_java_has_another_archive(java, tmp_path):
    """An update of Java in its place counts as another one."""
    before = classes.archive_path(java)
    (tmp_path / "java" / "release").write_text('JAVA_VERSION="17.0.2"')
    assert classes.archive_path(java) != before


def test_a_path_that_the_options_cannot_hold_is_refused(java, tmp_path, monkeypatch):
    """A space would end the option: refused when preparing, not used when starting."""
    monkeypatch.setenv(classes.CACHE_VARIABLE, str(tmp_path / "my cache"))
    with pytest.raises(InvalidInputError) as caught:
        classes.prepare(java)
    assert caught.value.kind == "unusable_cache"
    assert classes.CACHE_VARIABLE in caught.value.remedy
    path = classes.archive_path(java)
    path.parent.mkdir()
    path.write_bytes(b"x")
    assert classes.archive_options(java) == ""


def test_a_java_that_writes_none_is_an_error_and_leaves_nothing(java):
    """The reason is told, and the cache is as before."""
    with pytest.raises(IncompatibleError) as caught:
        classes.prepare(java)
    assert caught.value.kind == "no_class_archive"
    assert caught.value.facts["reason"]
    assert os.listdir(classes.cache_directory()) == []


def test_what_is_there_is_not_made_again_and_can_be_removed(java):
    """`remove` deletes archives of all versions, and nothing else."""
    path = classes.archive_path(java)
    path.parent.mkdir()
    path.write_bytes(b"abc")
    found = classes.prepare(java)
    assert (found.path, found.size, found.made) == (path, 3, False)
    (path.parent / "spark-classes-0.jsa").write_bytes(b"")
    (path.parent / "other").write_bytes(b"")
    assert classes.remove() == sorted([path, path.parent / "spark-classes-0.jsa"])
    assert os.listdir(path.parent) == ["other"]
    assert classes.remove() == []


@pytest.mark.parametrize(
    ("environment", "place"),
    [
        ({"HOLDFAST_CACHE": "/a", "XDG_CACHE_HOME": "/b"}, "/a"),
        ({"XDG_CACHE_HOME": "/b"}, "/b/holdfast"),
        ({}, str(Path.home() / ".cache" / "holdfast")),
    ],
)
def test_the_cache_is_where_users_expect_it(environment, place):
    """Our variable, then the one of the desktop's standard, then its default."""
    assert str(classes.cache_directory(environment)) == place
