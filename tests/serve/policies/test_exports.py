import importlib
import inspect
import pkgutil

from closeranks.serve import policies

INTERNAL = {"bounds"}


def test_every_public_policy_is_exported_and_nothing_else():
    modules = [m.name for m in pkgutil.iter_modules(policies.__path__) if m.name not in INTERNAL]
    defined = set()
    for name in modules:
        module = importlib.import_module(f"closeranks.serve.policies.{name}")
        defined |= {
            key
            for key, value in vars(module).items()
            if not key.startswith("_")
            and (inspect.isclass(value) or inspect.isfunction(value))
            and value.__module__ == module.__name__
        }
    words = {"Admitted", "Ask", "Kind", "Nowhere", "Outcome", "Placed", "Priority", "Shed", "Waits"}
    tables = {"SYMPTOMS", "VERDICTS"}
    assert set(policies.__all__) == (defined - {"seconds_up"}) | words | tables
