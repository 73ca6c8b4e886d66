"""Building: once, whoever asks and however it is disturbed; and what a failure says."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import jinja2
import pytest

from flashgen.generator import render as render_module
from flashgen.generator.errors import CacheError, CompileError, ToolchainError
from flashgen.runtime import build as build_module
from flashgen.runtime import cache_ops, toolchain, unit
from flashgen.runtime.build import build, find
from flashgen.runtime.cache import Cache
from flashgen.runtime.manifest import MANIFEST_NAME
from flashgen.runtime.ninja_file import Edge, ninja_text

LOADER = """
import sys
from flashgen.generator.arch import parse_target
from flashgen.generator.variant import parse_key
from flashgen.runtime.build import BuildRequest, build
(artifact,) = build([BuildRequest(parse_key("d8-fp32"), "forward", parse_target("cpu"))])
print(artifact.library)
"""


def start_loader(**more) -> subprocess.Popen:
    return subprocess.Popen([sys.executable, "-c", LOADER], stdout=subprocess.PIPE, **more)


def test_a_build_is_kept_and_described(cache, compiler, request_for):
    compiler.write_real()
    assert find(request_for(), cache=cache) is None
    (artifact,) = build([request_for()], cache=cache)
    assert artifact.library.is_file()
    assert artifact.source.read_text().startswith("//")
    assert (artifact.directory / "build.log").is_file()
    assert (artifact.directory / "host" / "abi.h").is_file()
    manifest = artifact.manifest
    assert (manifest.key, manifest.pass_name, manifest.target) == ("d8-fp32", "forward", "cpu")
    assert manifest.build_seconds > 0
    assert manifest.compilers[0].path == str(compiler.path)
    assert manifest.plan["key"] == "d8-fp32"
    assert cache_ops.verify(cache.root) == ()
    assert find(request_for(), cache=cache) == artifact
    assert not list((cache.root / "batches").iterdir())


def test_what_is_cached_is_not_built_again(cache, compiler, request_for):
    first = build([request_for()], cache=cache)
    events = []
    assert build([request_for()], cache=cache, progress=events.append) == first
    assert compiler.compilations == 1
    assert events == []


def test_the_same_request_twice_is_built_once(cache, compiler, request_for):
    one, other, again = build([request_for(), request_for("d16-fp32"), request_for()], cache=cache)
    assert one == again != other
    assert compiler.compilations == 2


def test_two_plans_of_one_key_are_built_side_by_side(cache, compiler, request_for):
    # each compiler waits until the other has started
    compiler.write(
        before=f"for i in $(seq 500); do [ $(wc -l < '{compiler.log}') = 2 ] && break; "
        "sleep 0.02; done; [ $i != 500 ] || exit 1"
    )
    pinned = request_for(pins=(("tile_n", 32),))
    one, other = build([request_for(), pinned], cache=cache, jobs=2)
    assert one.library != other.library
    assert other.manifest.plan["tile_n"] == 32
    assert find(pinned, cache=cache) == other


def test_force_builds_again_under_another_path(cache, compiler, request_for):
    (first,) = build([request_for()], cache=cache)
    (second,) = build([request_for()], cache=cache, force=True)
    assert compiler.compilations == 2
    assert first.library != second.library
    assert find(request_for(), cache=cache) == second


def test_progress_tells_of_each_unit(cache, compiler, request_for):
    requests = [request_for(), request_for("d16-fp32")]
    events = []
    artifacts = build(requests, cache=cache, jobs=1, progress=events.append)
    assert [(e.finished, e.total) for e in events] == [(0, 2), (1, 2), (2, 2)]
    assert events[0].request is None
    assert {e.request for e in events[1:]} == set(requests)
    assert {e.artifact.library for e in events[1:]} == {a.library for a in artifacts}


def test_paths_with_spaces_and_other_letters(tmp_path, compiler, request_for):
    compiler.write_real()
    root = tmp_path / "Wörk spáce $HOME 'q' 日本"
    (artifact,) = build([request_for()], cache=Cache(root))
    assert artifact.library.is_file()
    assert str(artifact.library).startswith(str(root))


def test_a_compiler_under_a_path_with_spaces(cache, compiler, tmp_path, monkeypatch, request_for):
    odd = tmp_path / "bin ünd $x" / "g++"
    odd.parent.mkdir()
    odd.symlink_to(compiler.path)
    monkeypatch.setenv("CXX", str(odd))
    build([request_for()], cache=cache)
    assert compiler.compilations == 1


def test_upgraded_compiler_rebuilds_and_a_touched_one_does_not(cache, compiler, request_for):
    build([request_for()], cache=cache)
    os.utime(compiler.path, (1, 1))
    build([request_for()], cache=cache)
    assert compiler.compilations == 1
    compiler.write(version="13.1.0")
    build([request_for()], cache=cache)
    assert compiler.compilations == 2


def test_an_edited_template_rebuilds(cache, compiler, tmp_path, monkeypatch, request_for):
    environment = render_module.environment()

    def edit(template, mark):
        def get(name):
            text = environment.loader.get_source(environment, name)[0]
            return text + mark if name == template else text

        other = environment.overlay(loader=jinja2.FunctionLoader(get))
        monkeypatch.setattr(render_module, "environment", lambda: other)
        monkeypatch.setattr(unit, "environment", lambda: other)

    build([request_for()], cache=cache)
    edit("cpu/forward.cpp.j2", "// edited\n")
    (edited,) = build([request_for()], cache=cache)
    assert compiler.compilations == 2
    assert edited.source.read_text().endswith("// edited\n")


def test_flags_of_the_environment_have_no_effect(cache, compiler, monkeypatch, request_for):
    compiler.write(before='[ -z "$NVCC_APPEND_FLAGS" ] && [ "$LC_ALL" = C ] || exit 3')
    monkeypatch.setenv("NVCC_APPEND_FLAGS", "--no-such-flag")
    monkeypatch.setenv("LC_ALL", "de_DE.UTF-8")
    build([request_for()], cache=cache)


def test_compile_error(cache, compiler, request_for):
    compiler.write_real(before='set -- "$@" -include /no/such/header.h')
    with pytest.raises(CompileError) as caught:
        build([request_for()], cache=cache)
    message = str(caught.value)
    assert "d8-fp32 forward cpu" in message
    assert "header.h: No such file" in message
    log = message.split("Log: ")[1].rstrip(".")
    assert "header.h" in Path(log).read_text()
    assert find(request_for(), cache=cache) is None


def test_compile_error_names_the_generated_line(cache, compiler, monkeypatch, request_for):
    compiler.write_real(before="sed -i '7s/^/oops\\n/' *.cpp")
    with pytest.raises(CompileError, match=r"First error: \S+\.cpp:\d+:.* At: (\S+):(\d+)\.") as e:
        build([request_for()], cache=cache)
    path, line = re.search(r"At: (\S+):(\d+)\.", str(e.value)).groups()
    assert Path(path).read_text().splitlines()[int(line) - 1] == "oops"


def test_a_killed_compiler_says_so(cache, compiler, request_for):
    compiler.write(before="kill -9 $$")
    with pytest.raises(CompileError, match=r"killed \(signal 9\).*memory.*FLASHGEN_MAX_JOBS"):
        build([request_for()], cache=cache)


def test_a_killed_child_of_the_compiler_says_so(cache, compiler, request_for):
    compiler.write(before="echo \"nvcc error : 'cicc' died due to signal 9 (Kill signal)\"; exit 9")
    with pytest.raises(CompileError, match=r"killed \(signal 9\)"):
        build([request_for()], cache=cache)


def test_one_failure_does_not_take_the_others_along(cache, compiler, request_for):
    compiler.write(before='case "$*" in *d16*) exit 1;; esac')
    requests = [request_for("d16-fp32"), request_for("d8-fp32"), request_for("d16-fp64")]
    with pytest.raises(CompileError, match=r"d16.*1 more unit\(s\) failed"):
        build(requests, cache=cache, jobs=2)
    assert find(request_for("d8-fp32"), cache=cache) is not None


def test_template_error_names_template_and_line(cache, monkeypatch, request_for):
    source = "int x;\n//% if plan.no_such_field\nint y;\n//% endif\n"
    loader = jinja2.FunctionLoader(lambda name: (source, f"/templates/{name}", None))
    other = render_module.environment().overlay(loader=loader)
    monkeypatch.setattr(render_module, "environment", lambda: other)
    with pytest.raises(CompileError, match=r"d8-fp32 .*forward\.cpp\.j2:2: .*no_such"):
        find(request_for(), cache=cache)


def test_no_compiler_finds_what_is_built_and_says_what_to_install(
    cache, compiler, monkeypatch, tmp_path, request_for
):
    (artifact,) = build([request_for()], cache=cache)
    monkeypatch.delenv("CXX")
    monkeypatch.setenv("PATH", str(tmp_path))
    assert build([request_for()], cache=cache) == [artifact]
    with pytest.raises(ToolchainError, match=r"g\+\+"):
        build([request_for("d16-fp32")], cache=cache)


def test_a_cache_that_cannot_be_written(tmp_path, compiler, request_for):
    (tmp_path / "file").write_text("")
    with pytest.raises(CacheError, match="FLASHGEN_CACHE_DIR") as caught:
        build([request_for()], cache=Cache(tmp_path / "file" / "cache"))
    assert str(tmp_path / "file" / "cache") in str(caught.value)


def test_strict_refuses_lost_speed_built_or_cached(cache, compiler, request_for):
    spill = "ptxas info : (C7508) Potential Performance Loss: setmaxnreg ignored"
    compiler.write(before=f'echo "{spill}"')
    with pytest.raises(CompileError, match="expected no lost speed.*C7508"):
        build([request_for(strict=True)], cache=cache)
    (artifact,) = build([request_for()], cache=cache)
    assert artifact.manifest.warnings == (spill,)
    with pytest.raises(CompileError, match="C7508"):
        build([request_for(strict=True)], cache=cache)


@pytest.mark.parametrize("harm", ["truncate", "delete"])
def test_a_harmed_entry_is_built_again(cache, compiler, request_for, harm):
    (first,) = build([request_for()], cache=cache)
    if harm == "truncate":
        os.truncate(first.library, 100)
    else:
        (first.directory / MANIFEST_NAME).unlink()
    (second,) = build([request_for()], cache=cache)
    assert second.library != first.library
    assert compiler.compilations == 2


def test_eight_processes_build_once(cache, compiler):
    compiler.write(before="sleep 1")
    loaders = [start_loader() for _ in range(8)]
    libraries = {loader.communicate(timeout=120)[0] for loader in loaders}
    assert [loader.returncode for loader in loaders] == [0] * 8
    assert compiler.compilations == 1
    assert len(libraries) == 1


def test_killed_builder_blocks_nobody(cache, compiler, request_for):
    compiler.write(before="sleep 30")
    builder = start_loader(start_new_session=True)
    deadline = time.monotonic() + 60
    while compiler.compilations == 0 and time.monotonic() < deadline:
        time.sleep(0.02)
    assert compiler.compilations == 1
    os.kill(builder.pid, signal.SIGKILL)
    builder.wait()
    compiler.write()
    try:
        start = time.monotonic()
        (artifact,) = build([request_for()], cache=cache)
        assert time.monotonic() - start < 20
        assert artifact.library.is_file()
    finally:
        os.killpg(builder.pid, signal.SIGKILL)  # the orphaned ninja and its sleep


def test_an_interrupted_build_ends_ninja(cache, compiler, request_for):
    compiler.write(before="sleep 0.3")

    def interrupt(event):
        if event.finished:
            raise KeyboardInterrupt

    requests = [request_for(), request_for("d16-fp32"), request_for("d24-fp32")]
    with pytest.raises(KeyboardInterrupt):
        build(requests, cache=cache, jobs=1, progress=interrupt)
    assert compiler.compilations < 3
    assert len(build(requests, cache=cache)) == 3


def test_a_unit_built_by_another_meanwhile_is_taken(cache, compiler, monkeypatch, request_for):
    (artifact,) = build([request_for()], cache=cache)
    monkeypatch.setattr(build_module._Wanted, "lookup", lambda self, cache: None)
    events = []
    assert build([request_for()], cache=cache, progress=events.append) == [artifact]
    assert [event.elsewhere for event in events] == [False, True]
    assert compiler.compilations == 1


def test_ninja_text_escapes_paths(tmp_path):
    edge = Edge(Path("/a b/c:d$e"), ("cc", "x y", "$z"), "s.cu", "s.so", "s.d")
    text = ninja_text([edge])
    assert "build /a$ b/c$:d$$e/s.so: compile /a$ b/c$:d$$e/s.cu\n" in text
    assert "cd '/a b/c:d$$e' && {" in text
    assert "cc 'x y' '$$z' > build.log" in text
    with pytest.raises(ToolchainError, match="line breaks"):
        ninja_text([Edge(Path("/a\nb"), (), "s", "o", "d")])


def test_a_known_toolchain_starts_no_process(cache, compiler, monkeypatch, request_for):
    build([request_for()], cache=cache)
    monkeypatch.setattr(toolchain, "_known", {})
    monkeypatch.setattr(subprocess, "Popen", lambda *a, **k: pytest.fail("started a process"))
    assert find(request_for(), cache=cache) is not None
