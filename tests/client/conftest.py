from tests.client.servers import fresh, own_server, server

__all__ = ["fresh", "own_server", "server"]
