"""`dtfperf predict`: its table, its JSON, its figure, and its answers to wrong arguments."""

import json
from pathlib import Path
from typing import Any

import pytest

from pytest_dtfperf.cli import main
from pytest_dtfperf.formats import parse_link_rate
from tests.cli import place
from tests.cli.table import read

DAINT = ["predict", "inception3", "--device-rate=138.23", "--devices-per-host=1", "--gpus=1,8,32"]


def predict(capsys: pytest.CaptureFixture[str], *arguments: str) -> Any:
    assert main([*arguments, "--json"]) == 0
    return read("predict", capsys.readouterr().out)


def test_table_has_a_row_for_each_size(capsys: pytest.CaptureFixture[str]) -> None:
    """The table has a row for each size, and below it the link and the possible changes."""
    assert main([*DAINT, "--link-measured=20gbit"]) == 0
    out = capsys.readouterr().out
    lines = out.splitlines()
    assert lines[0].split("  ")[0] == "devices"
    assert [line.split()[0] for line in lines[2:5]] == ["1", "8", "32"]
    assert "138.2 to 138.2  100.0 %" in lines[2]
    assert "link of a host: 18.2 Gbit/s to 22.0 Gbit/s, --link-measured; likely" in out
    assert "other trainings on 32 devices" in out
    assert "wire_precision=bf16" in out


def test_json_has_intervals_and_parts(capsys: pytest.CaptureFixture[str]) -> None:
    """Each size has its interval and parts of the step that add up; changes are ordered by their rate."""
    found = predict(capsys, *DAINT, "--link=10gbit")
    assert found["link"]["high"] == 1.25e9
    assert found["link"]["source"] == "--link, of a data sheet"
    one, _, last = found["rates"]
    assert (one["gpus"], one["images_per_sec"], one["measured"], one["efficiency"]) == (1, 138.23, 138.23, 1.0)
    assert last["low"] < last["images_per_sec"] < last["high"]
    assert last["compute_s"] + last["jitter_s"] + last["link_s"] == pytest.approx(32 * 64 / last["images_per_sec"])
    ratios = [each["ratio"] for each in found["changes"]]
    assert ratios == sorted(ratios, reverse=True)


@pytest.mark.parametrize(
    ("text", "bytes_per_s"),
    [
        ("10gbit", 1.25e9),
        ("10 Gbit/s", 1.25e9),
        ("10 Gb/s", 1.25e9),
        ("1.25GB/s", 1.25e9),
        ("117MB", 117e6),
        ("500kb/s", 62_500),
    ],
)
def test_bits_and_bytes_of_links_are_distinguished(text: str, bytes_per_s: float) -> None:
    """A small b is bits, as data sheets and fingerprints have it, and a capital B is bytes."""
    assert parse_link_rate(text) == pytest.approx(bytes_per_s)


@pytest.mark.parametrize("text", ["10gb/s", "10gb", "10Gb", "1.25gB/min", "10", "-1GB/s", "0GB/s"])
def test_link_that_may_be_bits_or_bytes_is_refused(text: str) -> None:
    """A unit that does not show whether it is bits or bytes per second is refused, as is no rate."""
    with pytest.raises(ValueError, match="not a rate with its unit"):
        parse_link_rate(text)


def test_unknown_link_is_marked(capsys: pytest.CaptureFixture[str]) -> None:
    """Without a rate of the link, intervals have a mark, and a line has the options to give."""
    assert main(DAINT) == 0
    out = capsys.readouterr().out
    assert " ~" in out
    assert "give --link-measured, or --link, or rates of larger sizes" in out


def test_measured_rates_narrow_the_interval(capsys: pytest.CaptureFixture[str]) -> None:
    """Rates of more devices narrow the interval and are in the result."""
    before = predict(capsys, *DAINT)
    after = predict(capsys, *DAINT, "--measured=8/2:1018.18", "--measured=16/4:2001")
    assert after["largest_measured"] == 16
    assert [each["measured"] for each in after["rates"]] == [138.23, 1018.18, None]
    widths = [each["rates"][1]["high"] / each["rates"][1]["low"] for each in (before, after)]
    assert widths[1] < widths[0]


def test_published_rates_are_used(capsys: pytest.CaptureFixture[str]) -> None:
    """A published system gives its rates, its devices per host and its data sheet."""
    found = predict(capsys, "predict", "inception3", "--published=cscs-ec2-p2.8xlarge", "--gpus=16..32")
    assert [(each["gpus"], each["hosts"], each["measured"]) for each in found["rates"]] == [(16, 2, 448.57), (32, 4, 863.72)]
    assert found["link"]["high"] == 1.25e9


def test_measurements_of_a_session_are_used(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    """Valid measurements of the same training are taken from a session; without any, an error states that."""
    place.make_folder(tmp_path)
    session = str(tmp_path / place.SESSION)
    records = [json.loads(line) for line in (Path(session) / "measurements.jsonl").read_text().splitlines()]
    spec = next(
        each["spec"] for each in records if each["spec"]["model"] in ("alexnet", "trivial") and each["verdict"] == "PASSED"
    )
    words = [f"{name}={spec[name]}" for name in ("batch_size", "variable_update")]
    found = predict(capsys, "predict", spec["model"], *words, f"--session={session}", "--gpus=64")
    assert found["largest_measured"] >= 1
    assert main(["predict", "vgg16", f"--session={session}"]) == 2
    assert "has no valid measurement of vgg16" in capsys.readouterr().err


def test_devices_per_host_are_those_of_the_cluster(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    """Devices per host are those of clusters.toml, unless the option sets them."""
    file = tmp_path / "clusters.toml"
    file.write_text('[lab]\nbackend = "ssh"\nhosts = ["n[1-3]"]\ngpus_per_host = 4\n')
    words = ["predict", "mnist", "--device-rate=100", "--gpus=8", "--cluster=lab", f"--clusters-file={file}"]
    assert predict(capsys, *words)["rates"][0]["hosts"] == 2
    assert predict(capsys, *words, "--devices-per-host=1")["rates"][0]["hosts"] == 8


def test_figure_is_drawn(tmp_path: Path) -> None:
    """The figure is written as SVG or PNG, with the predicted line."""
    for name, start in (("a.svg", b"<?xml"), ("a.png", b"\x89PNG")):
        assert main([*DAINT, f"--figure={tmp_path / name}"]) == 0
        assert (tmp_path / name).read_bytes().startswith(start)
    assert b"predicted" in (tmp_path / "a.svg").read_bytes()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["inception3"], "give a rate to start from: --device-rate, --measured, --session or --published"),
        (["inception3", "gpus=4", "--device-rate=1"], "gpus=4: give it as --gpus=4"),
        (["inception3", "mnist", "--device-rate=1"], "one training at a time: inception3 and mnist are two"),
        (["inceptoin3", "--device-rate=1"], "Did you mean 'inception3'?"),
        (["inception3", "batch=4", "--device-rate=1"], "unknown argument 'batch'"),
        (["inception3", "--device-rate=1", "--link=1gbit", "--link-measured=1gbit"], "are two rates of one link"),
        (["inception3", "--device-rate=1", "--figure=a.pdf"], "--figure is a file .svg or .png, not a.pdf"),
        (["inception3", "--published=daint"], "unknown published system 'daint'"),
        (
            ["inception3", "variable_update=replicated", "--device-rate=1", "--gpus=8"],
            "trains in one process, and a host has 1",
        ),
    ],
)
def test_wrong_arguments_are_one_line(arguments: list[str], message: str, capsys: pytest.CaptureFixture[str]) -> None:
    """Wrong arguments are exit code 2 and one line with the allowed ones."""
    assert main(["predict", *arguments]) == 2
    err = capsys.readouterr().err
    assert message in err
    assert err.count("\n") == 1


@pytest.mark.parametrize(
    "option",
    [
        "--gpus=0",
        "--gpus=8..1",
        "--gpus=1..70000",
        "--num-ps=0",
        "--device-rate=0",
        "--device-rate=-1",
        "--measured=8",
        "--link=10",
    ],
)
def test_impossible_value_is_refused(option: str, capsys: pytest.CaptureFixture[str]) -> None:
    """A value that is out of range is refused with an example of what is allowed."""
    with pytest.raises(SystemExit) as ended:
        main(["predict", "mnist", "--device-rate=1", option])
    assert ended.value.code == 2
    assert "takes " in capsys.readouterr().err
