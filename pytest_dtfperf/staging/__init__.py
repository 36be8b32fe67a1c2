"""Data sets in Amazon S3 and their ways: up and down for people, and onto every host before a run reads them."""
