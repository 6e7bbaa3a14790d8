from __future__ import annotations

import json
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

import ranking
from pipelines.publishing import publish
from ranking import bundle as bundles
from ranking import repository as repositories
from ranking.errors import BundleError, OutputError


def files(folder: Path) -> dict[str, bytes]:
    """Every file below a folder, drafts too."""
    return {str(f.relative_to(folder)): f.read_bytes() for f in sorted(folder.rglob("*")) if f.is_file()}


class TestVersions:
    def test_count_from_one(self, bundle: Path, tmp_path: Path) -> None:
        repository = tmp_path / "repository"
        assert [publish(bundle, repository) for _ in range(3)] == [("feed", 1), ("feed", 2), ("feed", 3)]
        assert repositories.versions(repository, "feed") == [1, 2, 3]

    def test_are_whole_bundles(self, bundle: Path, tmp_path: Path) -> None:
        publish(bundle, tmp_path / "repository")
        assert files(tmp_path / "repository" / "feed" / "1") == files(bundle)
        ranking.load(tmp_path / "repository" / "feed" / "1")

    def test_are_current_as_soon_as_they_are_published(self, bundle: Path, tmp_path: Path) -> None:
        for version in (1, 2):
            publish(bundle, tmp_path)
            assert json.loads((tmp_path / "feed" / "current.json").read_text()) == {"version": version}
            assert repositories.current(tmp_path, "feed") == version

    def test_become_current_by_replacing_the_file_and_not_by_rewriting_it(self, bundle: Path, tmp_path: Path) -> None:
        """Whoever reads current.json meanwhile sees the old one or the new one, never half."""
        publish(bundle, tmp_path)
        old = tmp_path / "old.json"
        old.hardlink_to(tmp_path / "feed" / "current.json")
        publish(bundle, tmp_path)
        assert json.loads(old.read_text()) == {"version": 1}

    def test_never_change_once_published(self, bundle: Path, tmp_path: Path) -> None:
        publish(bundle, tmp_path)
        before = files(tmp_path / "feed" / "1")
        publish(bundle, tmp_path)
        assert files(tmp_path / "feed" / "1") == before

    def test_follow_the_highest_even_if_an_older_one_is_current(self, bundle: Path, tmp_path: Path) -> None:
        for _ in range(2):
            publish(bundle, tmp_path)
        (tmp_path / "feed" / "current.json").write_text('{"version": 1}')  # rolled back
        assert publish(bundle, tmp_path) == ("feed", 3)

    def test_follow_the_highest_even_if_one_was_removed(self, bundle: Path, tmp_path: Path) -> None:
        for _ in range(3):
            publish(bundle, tmp_path)
        shutil.rmtree(tmp_path / "feed" / "2")
        assert publish(bundle, tmp_path) == ("feed", 4)

    def test_leave_no_draft(self, bundle: Path, tmp_path: Path) -> None:
        publish(bundle, tmp_path)
        assert {file.name for file in tmp_path.iterdir()} == {"feed"}
        assert {file.name for file in (tmp_path / "feed").iterdir()} == {"1", "current.json"}


class TestNames:
    def test_are_the_bundles_unless_one_is_given(self, bundle: Path, tmp_path: Path) -> None:
        publish(bundle, tmp_path)
        publish(bundle, tmp_path, "trial-2")
        assert repositories.names(tmp_path) == ["feed", "trial-2"]
        assert repositories.versions(tmp_path, "trial-2") == [1]

    @pytest.mark.parametrize(
        "name", ["", ".", "..", "../up", "a/b", "/etc", "a b", ".hidden", "-rf", "a\\b", "feed\n", "größe", "a\0b"]
    )
    def test_that_no_folder_should_have_are_refused(self, bundle: Path, tmp_path: Path, name: str) -> None:
        with pytest.raises(BundleError, match="use letters, digits, '_' and '-'"):
            publish(bundle, tmp_path / "repository", name)
        assert list(tmp_path.iterdir()) == []


class TestBundlesThatDoNotVerify:
    @pytest.mark.parametrize("damage", ["altered", "removed", "added", "sums removed"])
    def test_are_refused_and_the_repository_stays_as_it_is(self, bundle: Path, tmp_path: Path, damage: str) -> None:
        repository, broken = tmp_path / "repository", tmp_path / "broken"
        publish(bundle, repository)
        before = files(repository)
        shutil.copytree(bundle, broken)
        weights = broken / "weights.safetensors"
        if damage == "altered":
            content = bytearray(weights.read_bytes())
            content[-1] ^= 1
            weights.write_bytes(content)
        elif damage == "removed":
            weights.unlink()
        elif damage == "added":
            (broken / "run.py").write_text("print('hello')")
        else:
            (broken / "SHA256SUMS").unlink()
        with pytest.raises(BundleError) as caught:
            publish(broken, repository)
        assert str(broken) in str(caught.value)
        assert files(repository) == before

    def test_are_refused_if_there_is_none(self, tmp_path: Path) -> None:
        with pytest.raises(BundleError, match=r"is no bundle: .* make one with 'ranker freeze'"):
            publish(tmp_path / "nothing", tmp_path / "repository")
        assert list(tmp_path.iterdir()) == []


class TestRepositoriesThatCannotBeWritten:
    def test_are_named(self, bundle: Path, tmp_path: Path) -> None:
        (tmp_path / "file").write_text("no folder")
        with pytest.raises(OutputError, match=f"{tmp_path}/file is a file, not a folder"):
            publish(bundle, tmp_path / "file")

    def test_stay_as_they_are_if_the_disk_is_full(
        self, bundle: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        publish(bundle, tmp_path)
        before = files(tmp_path)
        copied = []

        def disk_full(source: str, target: str, **_: object) -> None:
            if len(copied) == 2:
                raise OSError(28, "No space left on device")
            copied.append(target)

        monkeypatch.setattr(shutil, "copyfile", disk_full)
        with pytest.raises(OutputError, match="cannot be written"):
            publish(bundle, tmp_path)
        assert files(tmp_path) == before

    def test_say_so_if_another_published_the_same_version_meanwhile(
        self, bundle: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        copy = shutil.copyfile

        def meanwhile(source: str, target: str, **how: object) -> object:
            (tmp_path / "feed" / "1" / "theirs").mkdir(parents=True, exist_ok=True)
            return copy(source, target, **how)  # type: ignore[call-overload]

        monkeypatch.setattr(shutil, "copyfile", meanwhile)
        with pytest.raises(OutputError, match="feed/1 was made by another meanwhile: try again"):
            publish(bundle, tmp_path)
        assert {file.name for file in (tmp_path / "feed").iterdir()} == {"1"}


CRASHES = """
# Publishes into copies of a repository and dies (SIGKILL) before one of its changes to files, another each time.
import json, os, shutil, signal, sys
from pathlib import Path
from pipelines.publishing import publish

bundle, repository, folder, crashes = Path(sys.argv[1]), Path(sys.argv[2]), Path(sys.argv[3]), int(sys.argv[4])
CHANGES = {"os.rename", "os.mkdir", "os.remove", "os.rmdir", "os.chmod", "shutil.copyfile", "shutil.copytree"}

def changes(event, arguments):
    if event == "open":
        path, mode, flags = arguments
        writes = mode is not None and set(mode) & set("wax+")
        return writes or (mode is None and str(path).startswith(str(folder)))  # the second opens to flush
    return event in CHANGES

def publish_in_a_child(copy, die_at):
    if repository.exists():
        shutil.copytree(repository, copy)
    reader, writer = os.pipe()
    child = os.fork()
    if child:
        os.close(writer)
        _, status = os.waitpid(child, 0)
        return int(os.read(reader, 20) or 0), status
    seen = 0
    def watch(event, arguments):
        nonlocal seen
        if changes(event, arguments):
            if seen == die_at:
                os.kill(os.getpid(), signal.SIGKILL)
            seen += 1
    sys.addaudithook(watch)
    publish(bundle, copy)
    os.write(writer, str(seen).encode())
    os._exit(0)

total, status = publish_in_a_child(folder / "whole", -1)
assert status == 0 and total > crashes, (total, status)
total -= 1  # the last one flushes the folder, once current.json is the new one
late = crashes // 2
points = [i * (total - late) // (crashes - late) for i in range(crashes - late)] + list(range(total - late, total))
for number, point in enumerate(points):
    _, status = publish_in_a_child(folder / str(number), point)
    assert os.WIFSIGNALED(status), (point, status)
print(json.dumps({"changes": total, "points": points}))
"""


def crashed(bundle: Path, repository: Path, folder: Path, crashes: int) -> Path:
    """Copies of a repository, 0, 1, …, each left by a publication that died at another moment."""
    result = subprocess.run(
        [sys.executable, "-c", CRASHES, bundle, repository, folder, str(crashes)],
        capture_output=True,
        text=True,
        check=False,
    )
    assert result.returncode == 0, result.stderr
    return folder


MOMENTS = 14


@pytest.fixture(scope="module")
def copies(bundle: Path, repository: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return crashed(bundle, repository, tmp_path_factory.mktemp("crashed"), MOMENTS)


class TestCrashes:
    @pytest.mark.parametrize("moment", range(MOMENTS))
    def test_leave_the_old_version_current_and_whole(self, copies: Path, repository: Path, moment: int) -> None:
        left = copies / str(moment)
        assert repositories.names(left) == ["feed"]
        assert repositories.current(left, "feed") == 1
        assert files(left / "feed" / "1") == files(repository / "feed" / "1")

    @pytest.mark.parametrize("moment", range(MOMENTS))
    def test_leave_no_version_that_is_not_whole(self, copies: Path, moment: int) -> None:
        left = copies / str(moment)
        for version in repositories.versions(left, "feed"):
            bundles.verify_files(repositories.folder(left, "feed", version))

    @pytest.mark.parametrize("moment", range(0, MOMENTS, 3))
    def test_do_not_hinder_the_next_publication(self, bundle: Path, copies: Path, moment: int, tmp_path: Path) -> None:
        left = shutil.copytree(copies / str(moment), tmp_path / "left")
        name, version = publish(bundle, left)
        assert (name, repositories.current(left, name)) == ("feed", version)
        assert version in (2, 3)
        ranking.load(repositories.folder(left, name, version))

    def test_of_the_first_publication_leave_no_model(self, bundle: Path, tmp_path: Path) -> None:
        copies = crashed(bundle, tmp_path / "none yet", tmp_path, 4)
        for moment in range(4):
            left = copies / str(moment)
            assert not left.exists() or repositories.names(left) == []
            publish(bundle, left)
            assert repositories.names(left) == ["feed"]
            ranking.load(repositories.folder(left, "feed", repositories.current(left, "feed")))
