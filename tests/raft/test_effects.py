import typing

from kappamq import raft
from kappamq.raft import effects


def test_every_effect_has_its_line_in_the_contract() -> None:
    assert raft.__doc__ is not None
    for effect in typing.get_args(effects.Effect):
        assert f"| `{effect.__name__}` |" in raft.__doc__, f"the driver is not told what to do for {effect.__name__}"
        assert effect.__doc__
        assert effect.__name__ in raft.__all__
