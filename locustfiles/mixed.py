"""Mix of chat users and agents by the scenario mixed. Results are per class.

locust -f locustfiles/mixed.py --host http://server:8000
locust -f locustfiles/mixed.py --host http://server:8000 --headless --only chat
"""

from inferload.users import ScenarioUser


class MixedUser(ScenarioUser):
    """User whose sessions belong to the classes of the scenario by their shares."""

    scenario = "mixed"
