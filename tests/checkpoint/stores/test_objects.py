"""Object stores, asked of a real S3 server on this machine: lost answers, cut uploads, wrong buckets and names."""

import secrets
from concurrent.futures import ThreadPoolExecutor

import pytest

from closeranks.checkpoint.problems import Damaged, StoreProblem, StoreRefused
from closeranks.checkpoint.stores.object_errors import problem_of
from closeranks.checkpoint.stores.objects import PART_BYTES, ObjectStore
from closeranks.checkpoint.stores.opening import found, open_store, probe
from closeranks.checkpoint.stores.retry import created

KEY = "log/0000000001.json"
IMAGE = "data/a/w00000.safetensors"
BIG = memoryview(bytes(range(256)) * (PART_BYTES * 5 // 2 // 256))

process = pytest.mark.process


def keys(store):
    return [row.key for row in store.list("")]


def read_all(store, key, length):
    got = bytearray(length)
    store.read_into(key, 0, memoryview(got))
    return got


@process
def test_a_put_that_was_carried_out_but_answered_by_an_error_is_ours(bucket, object_store):
    # The client sends it again, and is told that the object exists: by itself, as reading back shows.
    bucket.fail("PUT", "log/", 500, done=True)
    assert object_store.create(KEY, b"nonce 1")
    assert object_store.read(KEY, 100) == b"nonce 1"


@process
def test_a_put_whose_every_answer_is_an_error_is_doubtful_and_settled_by_reading_back(bucket, object_store, no_sleep):
    bucket.fail("PUT", "log/", 500, times=4, done=True)
    with pytest.raises(StoreProblem, match=r"log/0000000001.json: creating an object: .*500") as caught:
        object_store.create(KEY, b"nonce 1")
    assert caught.value.doubtful
    assert caught.value.transient
    assert created(object_store, KEY, b"nonce 1", sleep=no_sleep)
    assert not created(object_store, KEY, b"nonce 2", sleep=no_sleep)


@process
def test_an_object_of_another_is_never_ours(bucket, object_store):
    bucket.fail("PUT", "log/", 500, done=False)
    other = open_store(f"{object_store.url}?endpoint={bucket.endpoint}&region=us-east-1")
    for theirs in (b"nonce 2", b"n", b"a much longer one"):
        assert other.create(KEY, theirs)
        assert not object_store.create(KEY, b"nonce 1")
        assert object_store.read(KEY, 100) == theirs
        other.delete([KEY])


@process
def test_one_failed_request_does_not_fail_an_upload(bucket, object_store):
    bucket.fail("PUT", "partNumber=2", 503)
    assert object_store.write(IMAGE, [BIG]) == len(BIG)
    assert read_all(object_store, IMAGE, len(BIG)) == BIG


@process
def test_an_upload_that_stays_cut_leaves_nothing_visible_and_nothing_hidden(bucket, object_store):
    bucket.fail("PUT", "partNumber=2", 503, times=99)
    with pytest.raises(StoreProblem, match=r"w00000.safetensors: uploading 41,943,040 bytes: .*503") as caught:
        object_store.write(IMAGE, [BIG])
    assert caught.value.transient
    assert keys(object_store) == []
    assert bucket.uploads() == []
    bucket.faults.clear()
    object_store.write(IMAGE, [BIG])


@process
def test_an_upload_completed_with_a_lost_answer_is_complete(bucket, object_store):
    bucket.fail("POST", "uploadId=", 500, times=99, done=True)
    assert object_store.write(IMAGE, [BIG]) == len(BIG)
    assert read_all(object_store, IMAGE, len(BIG)) == BIG


@process
def test_an_upload_is_seen_only_once_it_is_complete(bucket, object_store):
    seen = []
    with ThreadPoolExecutor(1) as other:

        def look(*_):
            seen.append(other.submit(keys, object_store).result(20))

        object_store.write(IMAGE, [BIG], look)
    assert seen
    assert all(names == [] for names in seen)
    assert keys(object_store) == [IMAGE]


@process
def test_a_range_is_read_without_the_rest(bucket, object_store):
    object_store.write(IMAGE, [BIG])
    bucket.requests.clear()
    got = bytearray(1000)
    object_store.read_into(IMAGE, 12_345, memoryview(got))
    assert got == BIG[12_345:13_345]
    assert [method for method, _ in bucket.requests] == ["GET"]


@process
def test_a_listing_of_many_pages_is_whole_and_in_order(bucket, object_store, monkeypatch):
    monkeypatch.setattr("closeranks.checkpoint.stores.objects.PAGE", 7)
    names = [f"log/{n:010d}.json" for n in range(20)]
    for name in names:
        object_store.create(name, b"x")
    assert keys(object_store) == names
    assert [row.key for row in object_store.list("log/", names[4])] == names[5:]


@process
def test_stores_at_two_prefixes_do_not_see_each_other(bucket, object_store):
    other = open_store(bucket.url(f"runs/{secrets.token_hex(4)}"))
    object_store.create(KEY, b"x")
    assert keys(other) == []
    assert other.create(KEY, b"y")


# --- bad input -------------------------------------------------------------------------------------------------------


@process
def test_a_bucket_that_is_not_there_is_said_by_every_method_and_is_no_damage(bucket):
    store = open_store(bucket.url("x").replace(bucket.name, "chekpoints"))
    for call in (
        lambda: store.create(KEY, b"x"),
        lambda: store.write(IMAGE, [memoryview(b"x")]),
        lambda: store.write(IMAGE, [BIG]),
        lambda: store.read(KEY, 10),
        lambda: store.read_into(KEY, 0, memoryview(bytearray(1))),
        lambda: list(store.list("")),
        lambda: store.delete([KEY, IMAGE]),
        lambda: found(store, "gpt", make=True, now_wall_s=1.0),
    ):
        with pytest.raises(StoreProblem, match=r"s3://chekpoints/x.*expected a bucket, got .*NoSuchBucket") as caught:
            call()
        assert "create the bucket, or correct its name in --store" in str(caught.value)
        assert not caught.value.transient
        assert not caught.value.doubtful


@process
@pytest.mark.parametrize("status", [401, 403])
def test_a_missing_permission_is_said_with_the_way_out(bucket, object_store, status):
    bucket.fail("PUT", "log/", status, times=9)
    bucket.fail("GET", "log/", status, times=9)
    for call in (lambda: object_store.create(KEY, b"x"), lambda: object_store.read(KEY, 10)):
        with pytest.raises(
            StoreProblem, match=f"expected permission, got .*{status}.*what they may do in this bucket"
        ) as caught:
            call()
        assert object_store.url in str(caught.value)
        assert not caught.value.transient


@process
def test_a_server_that_nobody_answers_at_is_transient_and_not_doubtful(bucket):
    store = open_store("s3://bucket/x?endpoint=http://127.0.0.1:1&region=us-east-1")
    with pytest.raises(StoreProblem, match="check that the endpoint can be reached") as caught:
        store.create(KEY, b"x")
    assert caught.value.transient
    assert not caught.value.doubtful


@process
def test_a_server_without_conditional_puts_is_refused_by_the_probe(bucket, object_store, monkeypatch):
    inner = bucket._inner

    def forgetful(environ, start):
        environ.pop("HTTP_IF_NONE_MATCH", None)
        return inner(environ, start)

    monkeypatch.setattr(bucket, "_inner", forgetful)
    with pytest.raises(StoreRefused, match="got a store that lets both win"):
        probe(object_store)


@process
def test_a_damaged_object_names_itself(bucket, object_store):
    object_store.create(KEY, b"0123456789")
    with pytest.raises(
        Damaged, match=r"log/0000000001.json: expected at least 2,000 bytes, got a shorter object"
    ) as caught:
        object_store.read_into(KEY, 0, memoryview(bytearray(2000)))
    assert caught.value.object_key == KEY


# --- the URL ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "url"),
    [
        ("s3://bucket", "s3://bucket"),
        ("s3://bucket/", "s3://bucket"),
        ("s3://bucket/runs/gpt/?region=eu-west-1", "s3://bucket/runs/gpt"),
        ("gs://bucket/Runs/gpt", "gs://bucket/Runs/gpt"),
        ("az://container/runs?account=acme", "az://container/runs"),
    ],
)
def test_a_url_is_opened_without_sending_anything(text, url):
    store = open_store(text)
    assert isinstance(store, ObjectStore)
    assert store.url == url


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("s3://", "expected s3://BUCKET/PREFIX"),
        ("s3:///prefix", "expected s3://BUCKET/PREFIX"),
        ("s3://key:hunter2@bucket/x", "credentials come from the environment"),
        ("s3://bucket/x?reigon=eu", "got 'reigon'; did you mean 'region'?"),
        ("s3://bucket/x?secret_access_key=hunter2", "got 'secret_access_key'"),
        ("gs://bucket/x?region=eu", "expected options among endpoint, skip_signature, got 'region'"),
        ("az://container/x", "write az://CONTAINER/PREFIX?account=NAME"),
    ],
)
def test_a_url_that_is_not_understood_is_refused_without_repeating_secrets(text, words, monkeypatch):
    monkeypatch.delenv("AZURE_STORAGE_ACCOUNT_NAME", raising=False)
    with pytest.raises(StoreRefused) as caught:
        open_store(text)
    assert words in str(caught.value)
    assert "hunter2" not in str(caught.value)


def test_a_prefix_cannot_climb_out_of_the_bucket():
    with pytest.raises((StoreRefused, StoreProblem), match="could lead out of the store"):
        open_store("s3://bucket/a/../../b")


def test_what_a_url_signs_is_not_repeated():
    problem = problem_of(Exception("Error performing PUT https://a.blob/c/x?sv=1&sig=hunter2 in 1s - 500"), "az://c: x")
    assert "hunter2" not in str(problem)
