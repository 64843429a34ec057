"""A store in a dictionary, whose calls a test can watch, delay and spoil."""

from closeranks.checkpoint.problems import Damaged, StoreProblem
from closeranks.checkpoint.stores.store import Listed


class DictStore:
    url = "dict:"

    def __init__(self):
        self.objects = {}
        self.on_call = lambda _method, _key: None  # may raise, before anything happens

    def create(self, key, data):
        self.on_call("create", key)
        if key in self.objects:
            return False
        self.objects[key] = bytes(data)
        return True

    def write(self, key, parts, on_piece=None):
        self.on_call("write", key)
        if key in self.objects:
            raise StoreProblem(f"{key} exists")
        self.objects[key] = b"".join(parts)
        return len(self.objects[key])

    def read_into(self, key, begin, target):
        self.on_call("read", key)
        data = self.objects.get(key, b"")[begin : begin + len(target)]
        if len(data) != len(target):
            raise Damaged(f"{key}: absent or too short", object_key=key)
        target[:] = data

    def read(self, key, limit_bytes):
        self.on_call("read", key)
        if key not in self.objects or len(self.objects[key]) > limit_bytes:
            raise Damaged(f"{key}: absent or too long", object_key=key)
        return self.objects[key]

    def list(self, prefix, after=""):
        self.on_call("list", prefix)
        return iter(
            [Listed(k, len(v), 0.0) for k, v in sorted(self.objects.items()) if k.startswith(prefix) and k > after]
        )

    def delete(self, keys):
        for key in keys:
            self.on_call("delete", key)
            self.objects.pop(key, None)

    def close(self):
        pass
