"""Clusters of instances that Amazon EC2 lends: the only place that knows boto3."""
