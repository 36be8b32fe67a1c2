"""A pretend Amazon: moto behind a real socket, with what moto lacks of EC2, faults on the wire, and machines on request.

`cloud.py` is its face; everything else is behind it:

    server.py            moto's application on 127.0.0.1, one for all tests of a process
    wire.py, faults.py   a request as it was sent; what is done to it: throttled, lost, withheld, delayed
    policy.py            which calls a user's IAM policy allows
    world.py             what there is beyond moto's own state, and what happens later
    launching.py, ending.py, looking.py, groups.py, spot.py
                         EC2's calls, as EC2 answers them
    filters.py           Amazon's filters
    catalogue.py, quotas.py
                         prices and images; how much an account may run
    datacenter.py        the same cloud, whose instances are machines:
    computer.py, cloudinit.py, metadata.py, doors.py
                         one of them; what its user data asks for; its metadata service; its security groups
    guard.py             an environment from which the real Amazon cannot be reached
    descriptions.py      what boto3 knows of services, read once
"""
