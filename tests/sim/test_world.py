from kappamq.sim.world import World


def test_events_happen_at_their_time_in_order() -> None:
    world, seen = World(1), []

    def see(what: str) -> None:
        seen.append((what, world.now))
        if what == "first":
            world.after(5, see, "from within")

    world.after(10, see, "second")
    world.after(3, see, "first")
    world.after(10, see, "third")
    world.after(11, see, "later")
    world.run_until(10)
    assert seen == [("first", 3), ("from within", 8), ("second", 10), ("third", 10)]
    assert (world.now, world.events) == (10, 4)


def test_a_seed_is_a_history() -> None:
    one, same, other = World(5), World(5), World(6)
    drawn = [world.between(10, 20) for world in (one, same, other)]
    assert drawn[0] == drawn[1] != drawn[2]
    assert all(10 <= value <= 20 for value in drawn)
    assert not one.happens(0.0)
    assert one.happens(1.0)
