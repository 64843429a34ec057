"""A store whose calls a test can watch, hold up and spoil."""


class HookedStore:
    """``before`` and ``after`` hear the name of each method and its key; what they raise is the call's answer."""

    def __init__(self, inner):
        self.inner, self.url = inner, inner.url
        self.before = self.after = lambda _method, _key: None

    def _ask(self, method, key, *more):
        self.before(method, key)
        answer = getattr(self.inner, method)(key, *more)
        self.after(method, key)
        return answer

    def create(self, key, data):
        return self._ask("create", key, data)

    def write(self, key, parts, on_piece=None):
        return self._ask("write", key, parts, on_piece)

    def read_into(self, key, begin, target):
        return self._ask("read_into", key, begin, target)

    def read(self, key, limit_bytes):
        return self._ask("read", key, limit_bytes)

    def list(self, prefix, after=""):
        return iter(tuple(self._ask("list", prefix, after)))

    def delete(self, keys):
        for key in keys:
            self._ask("delete", [key])

    def close(self):
        self.inner.close()
