"""The EC2 backend: the only package that uses boto3 for instances."""
