"""A folder for `sys.path`: put first, it makes `import mooncake.store` ours."""
