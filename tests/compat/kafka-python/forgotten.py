"""A plugin of pytest that says of a case whether kafka-python forgot a subscription in it; it changes nothing.

A subscription that is made while the metadata request before it is on its way is not asked for until the metadata is
300 s old, whatever the server answers: ClusterMetadata.update_metadata clears the wish for another request.
"""

from kafka.cluster import ClusterMetadata

forgotten = False


def pytest_configure():
    ask, update = ClusterMetadata.metadata_request, ClusterMetadata.update_metadata

    def metadata_request(cluster):
        cluster.asked = wish(cluster)
        return ask(cluster)

    def update_metadata(cluster, response):
        global forgotten
        asked_for_all = None in cluster.asked
        update(cluster, response)
        # Also what was wished for while it was at that.
        forgotten |= not asked_for_all and not wish(cluster) <= cluster.asked and not cluster.need_update

    ClusterMetadata.metadata_request, ClusterMetadata.update_metadata = metadata_request, update_metadata


def wish(cluster):
    """The topics to ask for; none stands for all of them."""
    return {None} if cluster.need_all_topic_metadata else set(cluster._topics)


def pytest_runtest_setup():
    global forgotten
    forgotten = False


def pytest_runtest_teardown(item):
    if forgotten:
        item.user_properties.append(("forgotten", item.nodeid))
