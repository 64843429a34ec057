"""The rendered JobSet against the published field tables. No cluster has run it."""

import re
import signal

import pytest
import yaml
from hypothesis import example, given, settings
from hypothesis import strategies as st
from tests.launch.schema import TABLES, problems
from typer.testing import CliRunner

from closeranks.cli.main import app_for
from closeranks.launch.kubernetes import Asked, ManifestProblem, claims_of, job_set
from closeranks.launch.outcome import NODE_ALONE
from closeranks.launch.yaml_text import yaml_text
from closeranks.run.options import UsageError, parse

EVERYTHING = Asked(
    name="train-7b",
    image="registry/train:1",
    nodes=3,
    options=("--store", "/shared/ckpt", "--grace", "90.5", "train.py", "--note", "costs $(MONEY)"),
    spares=1,
    nproc_per_node=8,
    gpus_per_node=8,
    namespace="lab",
    claims={"shared": "/shared", "data": "/data"},
    domains_map="places",
    evict_after_s=20,
    job_restarts=5,
)
PLAIN = Asked(name="j", image="i", nodes=2, options=("train.py",))


def job_of(asked):
    return job_set(asked)["spec"]["replicatedJobs"][0]["template"]["spec"]


def pod_of(asked):
    return job_of(asked)["template"]["spec"]


def arguments_of(asked):
    return pod_of(asked)["containers"][0]["args"]


@pytest.mark.parametrize("asked", [EVERYTHING, PLAIN], ids=["everything", "plain"])
def test_every_field_is_one_that_the_published_schemas_know(asked):
    assert list(problems(job_set(asked), "JobSet")) == []


@pytest.mark.parametrize(
    ("path", "value", "problem"),
    [
        (("spec", "networks"), {}, r"\.spec\.networks: unknown field"),
        (("spec", "network", "subdomain"), 7, r"\.spec\.network\.subdomain: expected str, got 7"),
        (("spec", "replicatedJobs", 0, "name"), None, r"replicatedJobs\[0\]\.name: expected str, got None"),
        (("spec", "failurePolicy", "restartStrategy"), "Sometimes", r"expected Recreate\|"),
        (("kind",), "Job", "expected =JobSet, got 'Job'"),
        (("metadata",), [], "expected a table"),
    ],
)
def test_the_check_finds_what_an_api_server_would_refuse(path, value, problem):
    tree = job_set(PLAIN)
    place = tree
    for step in path[:-1]:
        place = place[step]
    place[path[-1]] = value
    assert re.search(problem, "\n".join(problems(tree, "JobSet")))


def test_the_tables_agree_with_the_models_of_the_official_client():
    client = pytest.importorskip(
        "kubernetes.client", reason="compares with the kubernetes package where it is installed"
    )
    for name, table in TABLES.items():
        model = getattr(client, f"V1{name}", None)
        if model is None:
            assert name in {"JobSet", "JobSetSpec", "ReplicatedJob", "Network", "FailurePolicy"}
            continue
        known = {model.attribute_map[key]: kind for key, kind in model.openapi_types.items()}
        assert table.keys() <= known.keys(), name
        for field, kind in table.items():
            plain = kind.removesuffix("!")
            spelled = (
                re.sub("V1|[Ll]ist", "", known[field])
                .replace("Dict[str, str]", "{str}")
                .replace("dict(str, str)", "{str}")
            )
            if plain != "any" and "|" not in plain and name != "ResourceRequirements":
                assert spelled == plain, f"{name}.{field}"


def test_the_completion_index_is_the_node_rank_and_spares_are_further_indices():
    job = job_of(EVERYTHING)
    assert (job["completionMode"], job["completions"], job["parallelism"]) == ("Indexed", 4, 4)
    words = arguments_of(EVERYTHING)
    assert words[words.index("--nnodes") + 1] == "3"
    assert words[words.index("--node-rank") + 1] == "$(CLOSERANKS_NODE_RANK)"
    fields = {env["name"]: env["valueFrom"] for env in pod_of(EVERYTHING)["containers"][0]["env"]}
    index = {"fieldPath": "metadata.annotations['batch.kubernetes.io/job-completion-index']"}
    assert fields["CLOSERANKS_NODE_RANK"]["fieldRef"] == index
    assert fields["CLOSERANKS_TOKEN"]["secretKeyRef"] == {"name": "train-7b-token", "key": "token"}


def test_what_a_pod_runs_is_a_command_line_that_run_accepts():
    words = [word.replace("$(CLOSERANKS_NODE_RANK)", "3") for word in arguments_of(EVERYTHING)]
    options = parse([re.sub(r"(?<!\$)\$\([A-Z_]+\)", "0f3a", word) for word in words])
    assert (options.nnodes, options.node_rank, options.seats, options.run_id) == (3, 3, 24, "train-7b-0f3a")
    assert options.domains == "/etc/closeranks/domains/nodes.json"
    assert options.args == ("--note", "costs $$(MONEY)")  # the kubelet makes $(MONEY) of it


def test_without_an_authority_or_a_store_the_first_pod_leads_under_its_name_in_the_headless_service():
    words = arguments_of(PLAIN)
    assert words[words.index("--rdzv-endpoint") + 1] == "j-node-0-0.j:29500"
    assert "--rdzv-endpoint" not in arguments_of(EVERYTHING)
    assert job_set(PLAIN)["spec"]["network"] == {
        "enableDNSHostnames": True,
        "subdomain": "j",
        "publishNotReadyAddresses": True,
    }


def test_a_job_of_one_node_needs_no_place_to_meet():
    words = arguments_of(Asked(name="j", image="i", nodes=1, options=("train.py",)))
    assert words[:2] == ["--nnodes", "1"]
    assert "--rdzv-endpoint" not in words


def test_a_policy_is_read_in_the_pod():
    asked = Asked(name="j", image="i", nodes=2, options=("--policy", "/only/there.toml", "train.py"))
    assert arguments_of(asked)[-3:] == ["--policy", "/only/there.toml", "train.py"]


def test_a_pod_gets_longer_to_end_than_the_supervisor_needs():
    assert pod_of(EVERYTHING)["terminationGracePeriodSeconds"] == 91 + 15
    assert pod_of(PLAIN)["terminationGracePeriodSeconds"] == 30 + 15


def test_recovery_is_left_to_the_supervisors():
    spec, job = job_set(EVERYTHING)["spec"], job_of(EVERYTHING)
    assert spec["failurePolicy"] == {"maxRestarts": 5}
    ignore, fail = job["podFailurePolicy"]["rules"]
    assert (ignore["action"], ignore["onPodConditions"][0]["type"]) == ("Ignore", "DisruptionTarget")
    assert (fail["action"], fail["onExitCodes"]["operator"]) == ("FailJob", "NotIn")
    assert fail["onExitCodes"]["containerName"] == pod_of(EVERYTHING)["containers"][0]["name"]
    assert job["successPolicy"] == {"rules": [{"succeededCount": 3}]}
    assert {one["tolerationSeconds"] for one in pod_of(EVERYTHING)["tolerations"]} == {20}


LEAVING = Asked(name="j", image="i", nodes=2, options=("--on-term", "leave", "train.py"))


@pytest.mark.parametrize(
    ("ending", "code", "asked", "ends_the_job"),
    [
        ("a step raised", 1, PLAIN, True),
        ("a rank died of SIGSEGV, and again", 139, PLAIN, True),
        ("the command line is wrong", 2, PLAIN, True),
        ("the run was stopped", 143, PLAIN, True),
        ("killed, or out of memory", 128 + signal.SIGKILL, PLAIN, False),
        # These ended a job that did well, because one of its pods had trouble of its own.
        ("turned away, given up, cut off, or a defect in one supervisor", NODE_ALONE, PLAIN, False),
        ("a replacement found its disk full, or could not reach the store", NODE_ALONE, EVERYTHING, False),
        ("the pod was deleted, and left", 128 + signal.SIGTERM, LEAVING, False),
        ("a step raised", 1, LEAVING, True),
    ],
)
def test_a_pod_that_ends_for_a_reason_of_its_own_does_not_end_the_job(ending, code, asked, ends_the_job):
    _, rule = job_of(asked)["podFailurePolicy"]["rules"]
    assert (code not in rule["onExitCodes"]["values"]) == ends_the_job, ending


def test_pods_are_placed_apart_and_mounts_have_their_volumes():
    pod = pod_of(EVERYTHING)
    (term,) = pod["affinity"]["podAntiAffinity"]["requiredDuringSchedulingIgnoredDuringExecution"]
    assert term["labelSelector"]["matchLabels"] == job_of(EVERYTHING)["template"]["metadata"]["labels"]
    assert {mount["name"] for mount in pod["containers"][0]["volumeMounts"]} == {one["name"] for one in pod["volumes"]}


@pytest.mark.parametrize("name", ["", "Train", "a_b", "-a", "a-", "a" * 41, "7b"])
def test_a_name_that_cannot_be_part_of_a_hostname_is_refused(name):
    with pytest.raises(ManifestProblem, match="expected at most 40 small letters"):
        job_set(Asked(name=name, image="i", nodes=2, options=("t.py",)))


def test_options_that_run_would_refuse_are_refused_here():
    refused = [
        ("--node-rank", "1", "t.py"),
        ("--quux", "t.py"),
        ("--spares", "1"),
        ("--rpo", "5m", "t.py"),
        ("--help",),
        ("--show-policy", "t.py"),
    ]
    for options in refused:
        with pytest.raises(UsageError):
            job_set(Asked(name="j", image="i", nodes=2, options=options))
    with pytest.raises(UsageError, match="a job of one node has none"):
        job_set(Asked(name="j", image="i", nodes=1, spares=1, options=("t.py",)))
    with pytest.raises(UsageError, match="--authority is for several nodes"):
        job_set(Asked(name="j", image="i", nodes=1, options=("--authority", "etcd://h:1", "t.py")))
    for claims in (["a"], ["a=b"], ["=/b"], ["a=/b", "a=/c"]):
        with pytest.raises(ManifestProblem, match="--claim"):
            claims_of(claims)


_PLAIN = st.text(max_size=20) | st.integers() | st.booleans() | st.none()
_TREES = st.recursive(
    _PLAIN,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=9), inner, max_size=3),
    max_leaves=6,
)


@settings(max_examples=40)
@given(_TREES)
@example("𝔸\\ud800\u2028")
def test_the_text_means_what_the_tree_means(value):
    tree = {"spec": value}
    assert yaml.safe_load(yaml_text(tree)) == tree


def test_the_command_prints_the_manifest_and_names_the_secret_that_it_needs():
    words = ["manifest", "kubernetes", "--name", "j", "--image", "i", "--nodes", "2", "--claim", "shared=/shared"]
    done = CliRunner().invoke(app_for(["manifest"]), [*words, "--", "--store", "/shared", "train.py"])
    assert done.exit_code == 0
    assert "Secret j-token" in done.output.splitlines()[0]
    assert yaml.safe_load(done.output) == job_set(
        Asked(name="j", image="i", nodes=2, options=("--store", "/shared", "train.py"), claims={"shared": "/shared"})
    )
    refused = CliRunner().invoke(app_for(["manifest"]), [*words, "--", "--quux", "train.py"])
    assert refused.exit_code == 2
    assert "closeranks manifest: unknown option --quux" in refused.output
