"""A pretend Amazon: moto behind a real socket, with EC2's behaviour where moto lacks it, faults, and machines on request.

`cloud.py` is its interface; everything else is behind it:

    server.py            moto's application on 127.0.0.1, one for all tests of a process
    wire.py, faults.py   a request as it was sent; faults of requests: throttled, lost, withheld, delayed
    policy.py            which calls a user's IAM policy allows
    world.py             state beyond moto's own, and future events
    launching.py, ending.py, describing.py, groups.py, spot.py
                         EC2's calls, as EC2 answers them
    filters.py           Amazon's filters
    catalogue.py, quotas.py
                         prices and images; the quotas of an account
    datacenter.py        the same cloud, with machines as instances:
    computer.py, cloudinit.py, metadata.py, doors.py
                         one of them; its user data; its metadata service; its security groups
    guard.py             an environment from which the real Amazon cannot be reached
    descriptions.py      boto3's descriptions of services, read once
"""
