"""Exported kernels of the cpu target: compiled by g++ with a C main, run without Python."""

from __future__ import annotations

import subprocess

import export_program
import pytest

from flashgen.generator.variant import parse_key


@pytest.mark.parametrize("kind", ["d16-fp64-causal", "d64-fp16", "documents fp32"])
def test_a_c_program_agrees_with_torch(tmp_path, kind):
    is_program = kind.startswith("documents")
    variant = export_program.documents(kind.split()[1]) if is_program else parse_key(kind)
    files = export_program.exported(variant, "cpu", tmp_path)
    told = files.source.partition("\n//   ")[2].partition("\n")[0].split()
    assert told[0] == "g++" and told[-1] == files.source_name
    flags = [flag for flag in told[1:] if flag != "-O3"]
    subprocess.run(["g++", *flags, "-O1", "-Wall", "-Werror"], cwd=tmp_path, check=True)
    strict = ["-std=c11", "-Wall", "-Wextra", "-Werror", "-pedantic", f"-I{tmp_path}"]
    command = ["gcc", *strict, *export_program.main_flags(variant), "-c", export_program.MAIN]
    subprocess.run([*command, "-o", "main.o"], cwd=tmp_path, check=True)
    subprocess.run(["g++", "-fopenmp", "main.o", "attn.o", "-o", "main"], cwd=tmp_path, check=True)
    messages = export_program.run(tmp_path / "main", variant)
    export_program.check_messages(messages, variant)
