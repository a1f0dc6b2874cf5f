"""A role that does not change."""

from __future__ import annotations

from kappamq.broker.naming.role_now import FixedRole, RoleNow


def test_id_0_is_the_master() -> None:
    role: RoleNow = FixedRole()
    assert (role.broker_id, role.version, role.is_master) == (0, 0, True)
    assert not FixedRole(2, 7).is_master
