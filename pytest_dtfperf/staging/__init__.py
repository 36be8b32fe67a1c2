"""Data sets in Amazon S3: upload and download for users, and staging on every host before a run reads them."""
